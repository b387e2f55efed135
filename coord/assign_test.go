package coord_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/coord"
)

// id is the UUID that is the n-th in order.
func id(n int) (id uuid.UUID) {
	id[0], id[15] = byte(n>>8), byte(n)
	return id
}

// The tables of the documents, whatever order the arguments come in.
func TestAssignDocumented(t *testing.T) {
	six := []string{"Analytics", "Billing", "Email", "Inventory", "Orders", "Shipping"}
	for _, want := range [][][]string{
		{{"Analytics", "Billing", "Email", "Inventory", "Orders", "Shipping"}},
		{{"Analytics", "Email", "Orders"}, {"Billing", "Inventory", "Shipping"}},
		{{"Analytics", "Inventory"}, {"Billing", "Orders"}, {"Email", "Shipping"}},
		{{"Analytics"}, {"Billing"}, {"Email"}, {"Inventory"}, {"Orders"}, {"Shipping"}},
		{{"Analytics"}, {"Billing"}, {"Email"}, {"Inventory"}, {"Orders"}, {"Shipping"}, {}, {}},
	} {
		t.Run(fmt.Sprint(len(want), " workers"), func(t *testing.T) {
			expected := map[string]uuid.UUID{}
			var members []coord.Member
			for i, units := range want {
				members = append(members, coord.Member{ID: id(i), Units: six})
				for _, u := range units {
					expected[u] = id(i)
				}
			}
			for range 20 {
				rand.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
				units := slices.Clone(six)
				rand.Shuffle(len(units), func(i, j int) { units[i], units[j] = units[j], units[i] })
				if got := coord.Assign(members, units); !maps.Equal(got, expected) {
					t.Fatalf("got  %v\nwant %v", got, expected)
				}
			}
		})
	}
}

// drawMembers draws workers that each have code for some of the units.
func drawMembers(t *rapid.T, most int, units []string) []coord.Member {
	ids := rapid.SliceOfNDistinct(rapid.IntRange(0, 1000), 0, most, rapid.ID).Draw(t, "ids")
	builds := rapid.SliceOfN(rapid.SliceOf(rapid.SampledFrom(units)), 1, 4).Draw(t, "builds")
	members := make([]coord.Member, len(ids))
	for i, n := range ids {
		members[i] = coord.Member{ID: id(n), Units: rapid.SampledFrom(builds).Draw(t, "build")}
	}
	return members
}

func names(n int) []string {
	units := make([]string, n)
	for i := range units {
		units[i] = fmt.Sprintf("unit %02d", i)
	}
	return units
}

func loads(owners map[string]uuid.UUID) map[uuid.UUID]int {
	n := map[uuid.UUID]int{}
	for _, owner := range owners {
		n[owner]++
	}
	return n
}

func TestAssign(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		units := names(rapid.IntRange(1, 40).Draw(t, "units"))
		members := drawMembers(t, 12, units)
		owners := coord.Assign(members, units)
		able := func(m coord.Member, u string) bool { return slices.Contains(m.Units, u) }
		for _, u := range units {
			owner, owned := owners[u]
			wanted := slices.ContainsFunc(members, func(m coord.Member) bool { return able(m, u) })
			if owned != wanted {
				t.Fatalf("%q has an owner: %v, somebody has code for it: %v", u, owned, wanted)
			}
			if owned && !slices.ContainsFunc(members, func(m coord.Member) bool { return m.ID == owner && able(m, u) }) {
				t.Fatalf("%q belongs to %v, who has no code for it", u, owner)
			}
		}
		n := loads(owners)
		for _, m := range members {
			for u, owner := range owners {
				if able(m, u) && n[owner] > n[m.ID]+1 {
					t.Fatalf("%v has %d units, among them %q, which %v could run, who has %d", owner, n[owner], u, m.ID, n[m.ID])
				}
			}
		}
		shuffled := rapid.Permutation(members).Draw(t, "other order")
		for i := range shuffled {
			shuffled[i].Units = rapid.Permutation(shuffled[i].Units).Draw(t, "other order of units")
		}
		twice := rapid.Permutation(append(units, units...)).Draw(t, "units in other order, twice")
		if again := coord.Assign(shuffled, twice); !maps.Equal(owners, again) {
			t.Fatalf("the order of the arguments matters: %v and %v", owners, again)
		}
	})
}

// No assignment whatever is more even: compared with all of them.
func TestAssignIsMostEven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		units := names(rapid.IntRange(1, 6).Draw(t, "units"))
		members := drawMembers(t, 4, units)
		got := squares(coord.Assign(members, units))
		if best := leastSquares(members, units, map[string]uuid.UUID{}); got != best {
			t.Fatalf("the squares of the loads add up to %d, possible are %d: %v", got, best, coord.Assign(members, units))
		}
	})
}

func squares(owners map[string]uuid.UUID) (sum int) {
	for _, n := range loads(owners) {
		sum += n * n
	}
	return sum
}

// leastSquares tries every assignment of units, in addition to owners.
func leastSquares(members []coord.Member, units []string, owners map[string]uuid.UUID) int {
	if len(units) == 0 {
		return squares(owners)
	}
	best := -1
	for _, m := range members {
		if slices.Contains(m.Units, units[0]) {
			owners[units[0]] = m.ID
			if n := leastSquares(members, units[1:], owners); best < 0 || n < best {
				best = n
			}
			delete(owners, units[0])
		}
	}
	if best < 0 { // nobody can run it
		return leastSquares(members, units[1:], owners)
	}
	return best
}

func BenchmarkAssign(b *testing.B) {
	units := names(1000)
	var members []coord.Member
	for i := range 50 {
		members = append(members, coord.Member{ID: id(i), Units: units[:len(units)-i%3]})
	}
	for b.Loop() {
		coord.Assign(members, units)
	}
}
