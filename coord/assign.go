package coord

import (
	"bytes"
	"math"
	"slices"

	"github.com/google/uuid"
)

// Member is a live worker and the units that it has code for.
type Member struct {
	ID    uuid.UUID
	Units []string
}

// Assign gives every unit that some member has code for to exactly one of
// these members; the others are not in the result. The loads are as even as
// they can be: none can be lowered without raising one that is as high. Where
// all members have code for everything, this deals the units, sorted by name,
// to the members, sorted by id, in turns. The order of the arguments does not
// matter.
//
// The algorithm is A_SM1 of Harvey, Ladner, Lovász and Tamir, Semi-matchings
// for bipartite graphs and load balancing (2006).
func Assign(members []Member, units []string) map[string]uuid.UUID {
	d := newDeal(members)
	units = slices.Clone(units)
	slices.Sort(units)
	for _, u := range slices.Compact(units) {
		d.place(u)
	}
	owners := make(map[string]uuid.UUID, len(units))
	for i, hand := range d.hands {
		for _, u := range hand {
			owners[u] = d.members[i].ID
		}
	}
	return owners
}

// deal is an assignment in the making. Members are known by their index.
type deal struct {
	members []Member         // sorted by id
	able    map[string][]int // who has code for a unit, ascending
	hands   [][]string       // what each member was given
}

func newDeal(members []Member) *deal {
	d := &deal{members: slices.Clone(members), able: map[string][]int{}, hands: make([][]string, len(members))}
	slices.SortFunc(d.members, func(a, b Member) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	for i, m := range d.members {
		for _, u := range m.Units {
			if able := d.able[u]; len(able) == 0 || able[len(able)-1] != i {
				d.able[u] = append(able, i)
			}
		}
	}
	return d
}

// step is how a member came to be reached in a search: by taking unit from
// another member, or, with from below 0, by the new unit itself.
type step struct {
	unit string
	from int
}

// place finds, breadth first, the least loaded member that the new unit can
// reach: directly, or by pushing a unit of an able member on to another, which
// may push in turn. Then everyone on the way hands one unit on.
func (d *deal) place(unit string) {
	least := math.MaxInt // no member has less
	for _, hand := range d.hands {
		least = min(least, len(hand))
	}
	reached := map[int]step{}
	var queue []int
	best := -1
	reach := func(u string, from int) {
		for _, i := range d.able[u] {
			if _, ok := reached[i]; ok {
				continue
			}
			reached[i] = step{u, from}
			queue = append(queue, i)
			if best < 0 || len(d.hands[i]) < len(d.hands[best]) {
				best = i
			}
		}
	}
	reach(unit, -1)
	for next := 0; next < len(queue) && len(d.hands[best]) > least; next++ {
		for _, u := range d.hands[queue[next]] {
			reach(u, queue[next])
		}
	}
	for i := best; i >= 0; i = reached[i].from {
		s := reached[i]
		d.hands[i] = append(d.hands[i], s.unit)
		if s.from >= 0 {
			at := slices.Index(d.hands[s.from], s.unit)
			d.hands[s.from] = slices.Delete(d.hands[s.from], at, at+1)
		}
	}
}
