// Package demand explains why a consumer does not have the number of partitions that the
// workers' builds demand.
package demand

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/scope"
	"github.com/pgfrontier/worker/ops"
)

// group is the set of workers whose builds have the same demand.
type group struct {
	demand partition.Demand // the zero value: a build without partition support
	places []string
}

// Disagreement explains which live workers keep a consumer from a demanded or fixed number of
// partitions. It lists the demand of each worker. It returns "" if no worker does, also while
// a change is in progress. place returns the location of a worker.
func Disagreement(c ops.Consumer, live []ops.Worker, place func(ops.Worker) string) string {
	groups := groupsOf(c.Name, live, place)
	var demands []partition.Demand
	for _, g := range groups {
		if g.demand != (partition.Demand{}) {
			demands = append(demands, g.demand)
		}
	}
	old, split := len(groups) > len(demands), len(c.Units) > 0
	fixed, foreign := c.Fixed, slices.ContainsFunc(live, func(w ops.Worker) bool { return w.Able == nil })
	if foreign {
		fixed = 0
	}
	n := partition.Number(fixed, split, old, demands)
	unlike := slices.ContainsFunc(demands, func(d partition.Demand) bool { return d.Count != n })
	var why string
	switch {
	case len(groups) == 0, n > 0 && fixed > 0, n > 0 && !unlike && !(split && len(demands) == 0) && !(foreign && c.Fixed > 1):
		return ""
	case old && fixed > 0:
		why = fmt.Sprintf("it is fixed at %d partitions, but only builds without partition support run", fixed)
	case foreign:
		why = "1 partition is wanted while a process of another library runs"
	case old && n == 1:
		why = "1 partition is wanted while a build without partition support runs"
	case slices.ContainsFunc(demands, func(d partition.Demand) bool { return d.Count != demands[0].Count }) && fixed == 0:
		why = fmt.Sprintf("it stays at %d partition%s, since the workers' builds ask for different counts", max(len(c.Units), 1), "s"[:min(max(len(c.Units)-1, 0), 1)])
	default:
		why = "it is not split, since the workers' builds have different keys"
	}
	return why + ": " + strings.Join(texts(groups), "; ")
}

// Waiting explains which live workers do not run a consumer because other builds have a
// greater scope. It lists the scope of each worker. It returns "" if no worker waits.
func Waiting(c ops.Consumer, live []ops.Worker, place func(ops.Worker) string) string {
	type build struct {
		scope  scope.Scope
		places []string
	}
	var builds []build
	for _, w := range live {
		shown, has := w.Scopes[c.Name]
		if !has {
			continue
		}
		s := scope.Of(shown.Types, shown.Version, "", shown.Projection)
		i := slices.IndexFunc(builds, func(b build) bool { return b.scope.Compare(s) == 0 })
		if i < 0 {
			i, builds = len(builds), append(builds, build{scope: s})
		}
		builds[i].places = append(builds[i].places, place(w))
	}
	if len(builds) < 2 {
		return ""
	}
	slices.SortFunc(builds, func(a, b build) int { return b.scope.Compare(a.scope) })
	var all []string
	for i, b := range builds {
		does := "waits"
		if len(b.places) > 1 {
			does = "wait"
		}
		if i == 0 {
			does = "may run it"
		}
		all = append(all, fmt.Sprintf("%s %s, selecting %s", firstPlaces(b.places), does, b.scope.Words()))
	}
	return "the builds select different events: " + strings.Join(all, "; ")
}

// Becoming returns the number of partitions that a consumer is changing to. It returns 0 if
// the consumer has that number or is not to change. During a change the consumer can have the
// wanted number of units with other borders.
func Becoming(c ops.Consumer) int {
	borders := []string{""}
	if len(c.Units) > 0 {
		borders = borders[:0]
	}
	for _, u := range c.Units {
		borders = append(borders, u.Partition)
	}
	if c.Wanted == 0 || slices.EqualFunc(partition.Cut(c.Wanted), borders, func(r partition.Range, b string) bool { return r.String() == b }) {
		return 0
	}
	return c.Wanted
}

// groupsOf groups the workers that have the consumer's code, and the workers whose code is
// unknown, by their demand. The groups are in the order of their first workers.
func groupsOf(consumer string, live []ops.Worker, place func(ops.Worker) string) (groups []group) {
	for _, w := range live {
		if w.Able != nil && !slices.Contains(w.Able, consumer) {
			continue
		}
		var demand partition.Demand
		if w.Demands != nil {
			demand = partition.Single
		}
		if shown, ok := w.Demands[consumer]; ok && shown.Count > 0 {
			demand = partition.Demand(shown)
		}
		i := slices.IndexFunc(groups, func(g group) bool { return g.demand == demand })
		if i < 0 {
			i, groups = len(groups), append(groups, group{demand: demand})
		}
		groups[i].places = append(groups[i].places, place(w))
	}
	return groups
}

// texts describes the groups, the highest demand first.
func texts(groups []group) (all []string) {
	slices.SortStableFunc(groups, func(a, b group) int { return b.demand.Count - a.demand.Count })
	for _, g := range groups {
		ask, have := "asks", "has"
		if len(g.places) > 1 {
			ask, have = "ask", "have"
		}
		text := fmt.Sprintf("%s %s for %d", firstPlaces(g.places), ask, g.demand.Count)
		switch {
		case g.demand == (partition.Demand{}):
			text = fmt.Sprintf("%s %s no partition support", firstPlaces(g.places), have)
		case g.demand.Key != "":
			text += " by the key " + g.demand.Key
		}
		all = append(all, text)
	}
	return all
}

// firstPlaces lists the first three places and counts the others.
func firstPlaces(places []string) string {
	const named = 3
	if more := len(places) - named; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(places[:named], ", "), more)
	}
	return strings.Join(places, ", ")
}
