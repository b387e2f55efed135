package coord

import (
	"bytes"
	"maps"
	"math"
	"slices"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/scope"
)

// member is a live worker and the units that its code has.
type member struct {
	ID    uuid.UUID
	Units []string // nil: unknown, since another library runs the worker
	// Demands are the partition demands that differ from [partition.Single]. A nil map marks a build
	// without partition support, which runs no part of a unit.
	Demands map[string]partition.Demand
	// Scopes are the scopes that the code declares. A unit without a scope belongs to a build
	// without scope support.
	Scopes map[string]scope.Scope

	draining bool // the member keeps its units and gets no other
}

// assignUnits gives every unit that some member has code for to exactly one of these members.
// The loads are as even as possible: no load can fall without another load rising that is as
// high. Among such assignments, assignUnits takes the fewest units from their current owners.
// Without owners, and if all members have code for all units, assignUnits deals the units in
// rotation. The units are then sorted by name and the members by id. The order of the
// arguments does not matter.
//
// The algorithm is A_SM2, which applies cost-reducing paths until none is left. Its source is
// Harvey, Ladner, Lovász and Tamir, Semi-matchings for bipartite graphs and load balancing
// (2006). Among cost-reducing paths it applies those that move the fewest units: the cycles of
// a minimum-cost flow.
func assignUnits(members []member, owners map[string]uuid.UUID) map[string]uuid.UUID {
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

// deal is an assignment under construction. Indexes identify units and members.
type deal struct {
	ids    []uuid.UUID // the members, ascending
	units  []string    // ascending
	able   [][]int     // the members with code for a unit, ascending
	owner  []int       // the owner of a unit, noMember if the owner has no code for the unit
	holder []int       // the member that a unit is given to
	load   []int       // the number of units of a member
	moves  int         // the number of units given to another member than their owner
	edges  []edge      // from each member to each
	cheap  []int8      // the cost of each edge
}

const noMember = -1

// edge counts the units that one member could pass to another, by the change of moves: one
// less, none, one more.
type edge [3]int

const (
	unreachable = math.MaxInt // the cost of an unreachable member
	noEdge      = math.MaxInt8
)

// cost returns the change of moves on the cheapest edge: -1 to 1, or noEdge.
func (w *edge) cost() int8 {
	for i, n := range w {
		if n > 0 {
			return int8(i - 1)
		}
	}
	return noEdge
}

func newDeal(members []member, owners map[string]uuid.UUID) *deal {
	members = slices.Clone(members)
	slices.SortFunc(members, func(a, b member) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	n := len(members)
	d := &deal{load: make([]int, n), edges: make([]edge, n*n), cheap: slices.Repeat([]int8{noEdge}, n*n)}
	index := map[uuid.UUID]int{}
	for i, m := range members {
		d.ids, index[m.ID] = append(d.ids, m.ID), i
	}
	able := membersAble(members)
	d.units = slices.Sorted(maps.Keys(able))
	for _, u := range d.units {
		owner := noMember
		if id, owned := owners[u]; owned {
			if i, alive := index[id]; alive && slices.Contains(able[u], i) {
				owner = i
			}
		}
		d.able, d.owner, d.holder = append(d.able, able[u]), append(d.owner, owner), append(d.holder, noMember)
	}
	return d
}

// membersAble returns, for each unit, the members that have code for the unit, ascending. Most
// members have the same build, so few lists of units differ.
func membersAble(members []member) map[string][]int {
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
	have := map[string]string{} // the builds that have a unit
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

// cost returns 1 if giving unit u to member i moves the unit, otherwise 0.
func (d *deal) cost(u, i int) int {
	if d.owner[u] == noMember || d.owner[u] == i {
		return 0
	}
	return 1
}

// count adds n to the load, the moves and the edges of unit u at its holder.
func (d *deal) count(u, n int) {
	i := d.holder[u]
	d.load[i] += n
	d.moves += n * d.cost(u, i)
	for _, j := range d.able[u] {
		at := i*len(d.ids) + j
		d.edges[at][1+d.cost(u, j)-d.cost(u, i)] += n
		d.cheap[at] = d.edges[at].cost()
	}
}

func (d *deal) give(u, i int) {
	if d.holder[u] != noMember {
		d.count(u, -1)
	}
	d.holder[u] = i
	d.count(u, 1)
}

// place leaves each unit with its owner. It gives each other unit to the able member with the
// lowest load. The result has no moves, but the loads may be uneven.
func (d *deal) place() {
	for u, i := range d.owner {
		if i != noMember {
			d.give(u, i)
		}
	}
	for u, i := range d.owner {
		if i == noMember {
			d.give(u, slices.MinFunc(d.able[u], func(a, b int) int { return d.load[a] - d.load[b] }))
		}
	}
}

// relieve passes a unit from a member to a member with a lower load. If need be, other members
// each pass one unit on the way. It does so only if the loads become more even, or stay as
// even with fewer moves. It reports whether it did.
func (d *deal) relieve(from int) bool {
	least := slices.Min(d.load)
	if d.load[from] <= least || d.load[from] == least+1 && d.moves == 0 {
		return false
	}
	cost, before := d.paths(from)
	best := from
	for i, c := range cost {
		gain := d.load[from] - d.load[i]
		if c == unreachable || gain < 1 || gain == 1 && c >= 0 {
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

// paths returns the cost of the cheapest path from one member to each other (Bellman and
// Ford). before is the predecessor of each member on its path. There are no cycles of negative
// cost, since all earlier steps used the cheapest paths.
func (d *deal) paths(from int) (cost, before []int) {
	n := len(d.ids)
	cost, before = slices.Repeat([]int{unreachable}, n), make([]int, n)
	waits := make([]bool, n)
	cost[from] = 0
	for queue := []int{from}; len(queue) > 0; queue = queue[1:] {
		i := queue[0]
		waits[i] = false
		if d.load[i] == 0 {
			continue
		}
		for j, c := range d.cheap[i*n : i*n+n] {
			if c != noEdge && cost[i]+int(c) < cost[j] {
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

// pass gives one unit of member i to member j, at the lowest cost.
func (d *deal) pass(i, j int) {
	c := int(d.cheap[i*len(d.ids)+j])
	for u, holder := range d.holder {
		if holder == i && d.cost(u, j)-d.cost(u, i) == c && slices.Contains(d.able[u], j) {
			d.give(u, j)
			return
		}
	}
}
