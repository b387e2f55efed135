package coord

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

// id returns the n-th UUID in order.
func id(n int) (id uuid.UUID) {
	id[0], id[15] = byte(n>>8), byte(n)
	return id
}

// Without owners, units are dealt in rotation by name and id, whatever the order of the
// arguments.
func TestAssignInRotation(t *testing.T) {
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
			var members []member
			for i, units := range want {
				members = append(members, member{ID: id(i), Units: six})
				for _, u := range units {
					expected[u] = id(i)
				}
			}
			for range 20 {
				rand.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
				for i := range members {
					members[i].Units = slices.Clone(six)
					rand.Shuffle(len(six), func(j, k int) { members[i].Units[j], members[i].Units[k] = members[i].Units[k], members[i].Units[j] })
				}
				if got := assignUnits(members, nil); !maps.Equal(got, expected) {
					t.Fatalf("got  %v\nwant %v", got, expected)
				}
			}
		})
	}
}

// drawMembers draws workers that each have code for some of the units.
func drawMembers(t *rapid.T, most int, units []string) []member {
	ids := rapid.SliceOfNDistinct(rapid.IntRange(0, 1000), 0, most, rapid.ID).Draw(t, "ids")
	builds := rapid.SliceOfN(rapid.SliceOf(rapid.SampledFrom(units)), 1, 4).Draw(t, "builds")
	members := make([]member, len(ids))
	for i, n := range ids {
		members[i] = member{ID: id(n), Units: rapid.SampledFrom(builds).Draw(t, "build")}
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

// drawOwners draws the current owners of the units: members, other workers, or none.
func drawOwners(t *rapid.T, members []member, units []string) map[string]uuid.UUID {
	who := []uuid.UUID{id(2000), id(2001)}
	for _, m := range members {
		who = append(who, m.ID)
	}
	owners := map[string]uuid.UUID{}
	for _, u := range rapid.SliceOfDistinct(rapid.SampledFrom(units), rapid.ID).Draw(t, "owned") {
		owners[u] = rapid.SampledFrom(who).Draw(t, "owner")
	}
	return owners
}

func TestAssign(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		units := names(rapid.IntRange(1, 40).Draw(t, "units"))
		members := drawMembers(t, 12, units)
		owners := drawOwners(t, members, units)
		dealt := assignUnits(members, owners)
		able := func(m member, u string) bool { return slices.Contains(m.Units, u) }
		for _, u := range units {
			owner, owned := dealt[u]
			wanted := slices.ContainsFunc(members, func(m member) bool { return able(m, u) })
			if owned != wanted {
				t.Fatalf("%q has an owner: %v, a member has code for it: %v", u, owned, wanted)
			}
			if owned && !slices.ContainsFunc(members, func(m member) bool { return m.ID == owner && able(m, u) }) {
				t.Fatalf("%q belongs to %v, which has no code for it", u, owner)
			}
		}
		n := loads(dealt)
		for _, m := range members {
			for u, owner := range dealt {
				if able(m, u) && n[owner] > n[m.ID]+1 {
					t.Fatalf("%v has %d units, among them %q, which %v could run with %d units", owner, n[owner], u, m.ID, n[m.ID])
				}
			}
		}
		shuffled := rapid.Permutation(members).Draw(t, "other order")
		for i := range shuffled {
			shuffled[i].Units = rapid.Permutation(append(shuffled[i].Units, shuffled[i].Units...)).Draw(t, "units in other order, twice")
		}
		if again := assignUnits(shuffled, owners); !maps.Equal(dealt, again) {
			t.Fatalf("the order of the arguments changes the result: %v and %v", dealt, again)
		}
		if again := assignUnits(members, dealt); !maps.Equal(dealt, again) {
			t.Fatalf("a correct assignment is changed: %v to %v", dealt, again)
		}
	})
}

// No other assignment is more even, and no assignment that is as even moves fewer units. The
// test compares the result with all assignments.
func TestAssignIsOptimal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		units := names(rapid.IntRange(1, 6).Draw(t, "units"))
		members := drawMembers(t, 4, units)
		owners := drawOwners(t, members, units)
		dealt := assignUnits(members, owners)
		got := quality(members, dealt, owners)
		if best := bestQuality(members, units, map[string]uuid.UUID{}, owners); got != best {
			t.Fatalf("the squares of the loads and the moves are %v, possible are %v: %v was %v", got, best, dealt, owners)
		}
	})
}

// quality returns the quality of an assignment: the sum of the squared loads, and the number of
// units taken from owners that could keep them.
func quality(members []member, dealt, owners map[string]uuid.UUID) (w [2]int) {
	for _, n := range loads(dealt) {
		w[0] += n * n
	}
	for u, holder := range dealt {
		owner, owned := owners[u]
		could := owned && slices.ContainsFunc(members, func(m member) bool { return m.ID == owner && slices.Contains(m.Units, u) })
		if could && holder != owner {
			w[1]++
		}
	}
	return w
}

// bestQuality tries every assignment of units, in addition to dealt.
func bestQuality(members []member, units []string, dealt, owners map[string]uuid.UUID) (best [2]int) {
	if len(units) == 0 {
		return quality(members, dealt, owners)
	}
	found := false
	for _, m := range members {
		if slices.Contains(m.Units, units[0]) {
			dealt[units[0]] = m.ID
			if w := bestQuality(members, units[1:], dealt, owners); !found || slices.Compare(w[:], best[:]) < 0 {
				best, found = w, true
			}
			delete(dealt, units[0])
		}
	}
	if !found { // no member can run the unit
		return bestQuality(members, units[1:], dealt, owners)
	}
	return best
}

// When a member joins or leaves, only the necessary units move.
func TestStickyMovesFewUnits(t *testing.T) {
	units := names(60)
	everyone := func(n int) (members []member) {
		for i := range n {
			members = append(members, member{ID: id(i), Units: units})
		}
		return members
	}
	moved := func(a, b map[string]uuid.UUID) (n int) {
		for u := range a {
			if a[u] != b[u] {
				n++
			}
		}
		return n
	}
	owners := assignUnits(everyone(5), nil)
	more := assignUnits(everyone(6), owners)
	if n := moved(owners, more); n != 10 {
		t.Errorf("%d units moved to the sixth member, whose share is 10", n)
	}
	if n := moved(more, assignUnits(everyone(6)[1:], more)); n != 10 {
		t.Errorf("%d units moved when a member of 10 units left", n)
	}
	if n := moved(owners, assignUnits(everyone(6), nil)); n <= 10 {
		t.Errorf("dealt in rotation, %d units move: the test proves nothing", n)
	}
}

// BenchmarkAssign measures rebalances of 2,000 units among 200 members.
func BenchmarkAssign(b *testing.B) {
	units := names(2000)
	everyone := func(n int) (members []member) {
		for i := range n {
			members = append(members, member{ID: id(i), Units: slices.Clone(units)})
		}
		return members
	}
	mixed := everyone(200)
	for i := range mixed {
		mixed[i].Units = units[:len(units)-i%3*100]
	}
	for name, c := range map[string]struct {
		members []member
		owners  map[string]uuid.UUID
	}{
		"rotation":                         {everyone(200), nil},
		"rotation, three builds":           {mixed, nil},
		"sticky, one joins":                {everyone(200), assignUnits(everyone(199), nil)},
		"sticky, one leaves":               {everyone(200)[1:], assignUnits(everyone(200), nil)},
		"sticky, three builds, one leaves": {mixed[1:], assignUnits(mixed, nil)},
		"sticky, 199 join":                 {everyone(200), assignUnits(everyone(1), nil)},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				assignUnits(c.members, c.owners)
			}
		})
	}
}
