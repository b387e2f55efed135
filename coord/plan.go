package coord

import (
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/liveness"
	"github.com/pgfrontier/worker/internal/partition"
)

// change assigns a unit to a worker.
type change struct {
	Unit       string    `json:"unit"`
	Worker     uuid.UUID `json:"worker"`
	Partitions int       `json:"partitions,omitempty"` // wanted of its consumer; 0: the units stay
}

// assignments are the assignments that a poll read.
type assignments struct {
	owners map[string]uuid.UUID // nil: not read; the nil UUID: no owner
	wanted map[string]int       // partitions in the assignments, by unit
	parts  []part
}

// next is the result of plan.
type next struct {
	changes []change // in order of name
	gone    []string // units that were split or merged, in order of name
	unowned []string // assigned units without code in a live worker, in order of name; they stay assigned
}

// plan compares the assignments with the target. It deals the wanted partitions. Each unit
// goes to the member that was dealt the partition of the unit's first slot. So the parts of
// one partition meet at one member, and the parts of a split spread. A unit of a draining
// member stays until the member releases it.
func plan(alive []member, is assignments, sticky bool) (n next) {
	alive, draining := withoutDraining(alive)
	layouts := layoutsOf(alive, is.parts)
	var before map[string]uuid.UUID
	if sticky {
		before = targetOwners(is.owners, layouts)
	}
	dealt := assignUnits(dealing(alive, layouts), before)
	give := func(unit, target string, partitions int) {
		worker, ok := dealt[target]
		was, owned := is.owners[unit]
		switch {
		case draining[was]:
		case ok && (!owned || was != worker || is.wanted[unit] != partitions):
			n.changes = append(n.changes, change{unit, worker, partitions})
		case !ok && owned:
			n.unowned = append(n.unowned, unit)
		}
	}
	present := map[string]bool{}
	for _, l := range layouts {
		for _, u := range l.units {
			present[u.name] = true
			give(u.name, l.target(u), l.wanted())
		}
	}
	for name := range dealt {
		if _, apart := layouts[partition.Consumer(name)]; !apart {
			present[name] = true
			give(name, name, 0)
		}
	}
	for name := range is.owners {
		if _, apart := layouts[partition.Consumer(name)]; !apart && partition.Consumer(name) == name {
			if !present[name] {
				n.unowned = append(n.unowned, name)
			}
		} else if !present[name] {
			n.gone = append(n.gone, name)
		}
	}
	slices.SortFunc(n.changes, func(a, b change) int { return strings.Compare(a.Unit, b.Unit) })
	slices.Sort(n.unowned)
	slices.Sort(n.gone)
	return n
}

// members returns the live workers as members. It parses the details of each worker once.
func (s *session) members(alive []liveness.Node) (all []member) {
	read := make(map[uuid.UUID]member, len(alive))
	for _, n := range alive {
		m, known := s.read[n.ID]
		if !known {
			m = member{ID: n.ID, Units: n.Names}
			m.Demands, m.Scopes = detailsOf(n)
		}
		m.draining = n.Draining
		read[n.ID] = m
		all = append(all, m)
	}
	s.read = read
	return all
}

// withoutDraining returns the members for a deal: a draining member has code for no unit.
func withoutDraining(alive []member) (all []member, draining map[uuid.UUID]bool) {
	all, draining = slices.Clone(alive), map[uuid.UUID]bool{}
	for i, m := range all {
		if m.draining {
			all[i], draining[m.ID] = member{ID: m.ID, Units: []string{}, Demands: map[string]partition.Demand{}}, true
		}
	}
	return all, draining
}

// ids returns the ids of workers.
func ids(nodes []liveness.Node) (all []uuid.UUID) {
	for _, n := range nodes {
		all = append(all, n.ID)
	}
	return all
}

// sameMembers does not compare the members' units, which never change.
func sameMembers(a, b []member) bool {
	return slices.EqualFunc(a, b, func(a, b member) bool { return a.ID == b.ID && a.draining == b.draining })
}
