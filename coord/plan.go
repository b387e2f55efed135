package coord

import (
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/liveness"
)

// change gives a unit to a worker.
type change struct {
	Unit   string    `json:"unit"`
	Worker uuid.UUID `json:"worker"`
}

// plan compares the assignments with what they should be: the changes, and the
// units that none of the living has code for, which are left to whom they
// belong; both in order of name.
func plan(alive []Member, owners map[string]uuid.UUID, sticky bool) (changes []change, unowned []string) {
	var keepers map[string]uuid.UUID
	if sticky {
		keepers = owners
	}
	wanted := Assign(alive, keepers)
	for unit, worker := range wanted {
		if is, ok := owners[unit]; !ok || is != worker {
			changes = append(changes, change{unit, worker})
		}
	}
	for unit := range owners {
		if _, ok := wanted[unit]; !ok {
			unowned = append(unowned, unit)
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return strings.Compare(a.Unit, b.Unit) })
	slices.Sort(unowned)
	return changes, unowned
}

// members are the workers that are alive.
func members(alive []liveness.Node) (all []Member) {
	for _, n := range alive {
		all = append(all, Member{ID: n.ID, Units: n.Names})
	}
	return all
}

// ids are those of workers.
func ids(nodes []liveness.Node) (all []uuid.UUID) {
	for _, n := range nodes {
		all = append(all, n.ID)
	}
	return all
}

// sameMembers needs no look at their units, which never change.
func sameMembers(a, b []Member) bool {
	return slices.EqualFunc(a, b, func(a, b Member) bool { return a.ID == b.ID })
}
