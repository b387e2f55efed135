package coord

import (
	"bytes"
	"maps"
	"math"
	"slices"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/scope"
)

// Member is a live worker and the units that it has code for.
type Member struct {
	ID    uuid.UUID
	Units []string // nil: it does not say, as it is of another library
	// Wishes are those that differ from [Single]. Nil: a program from before there
	// were partitions, which runs no part of a unit.
	Wishes map[string]Wish
	// Scopes are what the code selects of the log. A unit that is not there: it does not
	// say, as it is from before there were scopes.
	Scopes map[string]scope.Scope

	draining bool // it finishes what it has
}

// Assign gives every unit that some member has code for to exactly one of
// these members. The loads are as even as they can be: none can be lowered
// without raising one that is as high. Of all such assignments, it is one that
// takes the fewest units from the members who own them now. With no owners,
// and where all members have code for everything, this deals the units, sorted
// by name, to the members, sorted by id, in turns. The order of the arguments
// does not matter.
//
// The algorithm takes cost-reducing paths until there are none, as A_SM2 of
// Harvey, Ladner, Lovász and Tamir, Semi-matchings for bipartite graphs and
// load balancing (2006) does, and of these the ones that move the least: the
// cycles of a flow of minimal cost.
func Assign(members []Member, owners map[string]uuid.UUID) map[string]uuid.UUID {
	d := newDeal(members, owners)
	d.place()
	for again := true; again; {
		again = false
		for i := range d.ids {
			for d.relieve(i) {
				again = true
			}
		}
	}
	dealt := make(map[string]uuid.UUID, len(d.units))
	for u, name := range d.units {
		dealt[name] = d.ids[d.holder[u]]
	}
	return dealt
}

// deal is an assignment in the making. Units and members are known by their
// index.
type deal struct {
	ids    []uuid.UUID // the members, ascending
	units  []string    // ascending
	able   [][]int     // who has code for a unit, ascending
	owner  []int       // who owns a unit and is able, nobody if that is not so
	holder []int       // whom a unit was given
	load   []int       // how many units a member was given
	moves  int         // how many units were not given to their owner
	ways   []way       // from each member to each
	cheap  []int8      // the cost of each of them
}

const nobody = -1

// way counts the units that one member could pass on to another: how many
// moves there would be less, as many, or more.
type way [3]int

const (
	none  = math.MaxInt // the cost of a way that is not there
	noWay = math.MaxInt8
)

// cost is what the cheapest way adds to the moves: -1 to 1, or noWay.
func (w *way) cost() int8 {
	for i, n := range w {
		if n > 0 {
			return int8(i - 1)
		}
	}
	return noWay
}

func newDeal(members []Member, owners map[string]uuid.UUID) *deal {
	members = slices.Clone(members)
	slices.SortFunc(members, func(a, b Member) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	n := len(members)
	d := &deal{load: make([]int, n), ways: make([]way, n*n), cheap: slices.Repeat([]int8{noWay}, n*n)}
	index := map[uuid.UUID]int{}
	for i, m := range members {
		d.ids, index[m.ID] = append(d.ids, m.ID), i
	}
	able := whoIsAble(members)
	d.units = slices.Sorted(maps.Keys(able))
	for _, u := range d.units {
		owner := nobody
		if id, owned := owners[u]; owned {
			if i, alive := index[id]; alive && slices.Contains(able[u], i) {
				owner = i
			}
		}
		d.able, d.owner, d.holder = append(d.able, able[u]), append(d.owner, owner), append(d.holder, nobody)
	}
	return d
}

// whoIsAble returns the members that have code for a unit, ascending. Most
// members are of the same build, so that few lists of units differ.
func whoIsAble(members []Member) map[string][]int {
	type build struct {
		units   []string
		members []int
	}
	var builds []*build
	for i, m := range members {
		same := slices.IndexFunc(builds, func(b *build) bool { return slices.Equal(b.units, m.Units) })
		if same < 0 {
			same = len(builds)
			builds = append(builds, &build{units: m.Units})
		}
		builds[same].members = append(builds[same].members, i)
	}
	have := map[string]string{} // which builds have a unit
	for k, b := range builds {
		for _, u := range slices.Compact(slices.Sorted(slices.Values(b.units))) {
			have[u] += string(rune(k))
		}
	}
	able, together := make(map[string][]int, len(have)), map[string][]int{}
	for u, set := range have {
		if _, ok := together[set]; !ok {
			for _, k := range set {
				together[set] = append(together[set], builds[k].members...)
			}
			slices.Sort(together[set])
		}
		able[u] = together[set]
	}
	return able
}

// cost is 1 if it is a move that member i holds unit u.
func (d *deal) cost(u, i int) int {
	if d.owner[u] == nobody || d.owner[u] == i {
		return 0
	}
	return 1
}

// count adds n to whatever unit u counts for, in its holder's hand.
func (d *deal) count(u, n int) {
	i := d.holder[u]
	d.load[i] += n
	d.moves += n * d.cost(u, i)
	for _, j := range d.able[u] {
		at := i*len(d.ids) + j
		d.ways[at][1+d.cost(u, j)-d.cost(u, i)] += n
		d.cheap[at] = d.ways[at].cost()
	}
}

func (d *deal) give(u, i int) {
	if d.holder[u] != nobody {
		d.count(u, -1)
	}
	d.holder[u] = i
	d.count(u, 1)
}

// place leaves each unit to its owner, and gives the others, in turns, to who
// has the least. That is no move at all, if not as even as it can be.
func (d *deal) place() {
	for u, i := range d.owner {
		if i != nobody {
			d.give(u, i)
		}
	}
	for u, i := range d.owner {
		if i == nobody {
			d.give(u, slices.MinFunc(d.able[u], func(a, b int) int { return d.load[a] - d.load[b] }))
		}
	}
}

// relieve lets member from pass a unit on to someone who has less, if need be
// by way of others who each pass one on. It does so if that makes the loads
// more even, or as even with fewer moves, and reports whether it did.
func (d *deal) relieve(from int) bool {
	least := slices.Min(d.load)
	if d.load[from] <= least || d.load[from] == least+1 && d.moves == 0 {
		return false
	}
	cost, before := d.paths(from)
	best := from
	for i, c := range cost {
		gain := d.load[from] - d.load[i]
		if c == none || gain < 1 || gain == 1 && c >= 0 {
			continue
		}
		if best == from || d.load[i] < d.load[best] || d.load[i] == d.load[best] && c < cost[best] {
			best = i
		}
	}
	for to := best; to != from; to = before[to] {
		d.pass(before[to], to)
	}
	return best != from
}

// paths finds the cheapest way from one member to each other, and who comes
// before each on it (Bellman and Ford). As all that was done before took the
// cheapest ways, there are no circles that save moves.
func (d *deal) paths(from int) (cost, before []int) {
	n := len(d.ids)
	cost, before = slices.Repeat([]int{none}, n), make([]int, n)
	waits := make([]bool, n)
	cost[from] = 0
	for queue := []int{from}; len(queue) > 0; queue = queue[1:] {
		i := queue[0]
		waits[i] = false
		if d.load[i] == 0 {
			continue
		}
		for j, c := range d.cheap[i*n : i*n+n] {
			if c != noWay && cost[i]+int(c) < cost[j] {
				cost[j], before[j] = cost[i]+int(c), i
				if !waits[j] {
					waits[j] = true
					queue = append(queue, j)
				}
			}
		}
	}
	return cost, before
}

// pass gives one unit of member i to member j, at the cost of the cheapest.
func (d *deal) pass(i, j int) {
	c := int(d.cheap[i*len(d.ids)+j])
	for u, holder := range d.holder {
		if holder == i && d.cost(u, j)-d.cost(u, i) == c && slices.Contains(d.able[u], j) {
			d.give(u, j)
			return
		}
	}
}
