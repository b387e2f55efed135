// Package wishes says whether a consumer is on its way to the partitions that are wanted,
// and in words why it is not in as many as the workers' code wishes for.
package wishes

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pgfrontier/worker/coord"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/scope"
	"github.com/pgfrontier/worker/ops"
)

// group are workers whose code wishes for the same.
type group struct {
	wish   coord.Wish // the zero value: it says nothing
	places []string
}

// Disagreement says why the live workers keep a consumer from the number of partitions
// that some of them wish for, or that an operator has fixed, and which of them wish for
// what. It is empty if they do not. A change on its way is no disagreement. place says
// where a worker runs.
func Disagreement(c ops.Consumer, live []ops.Worker, place func(ops.Worker) string) string {
	groups := groupsOf(c.Name, live, place)
	var wishes []coord.Wish
	for _, g := range groups {
		if g.wish != (coord.Wish{}) {
			wishes = append(wishes, g.wish)
		}
	}
	old, split := len(groups) > len(wishes), len(c.Units) > 0
	fixed, foreign := c.Fixed, slices.ContainsFunc(live, func(w ops.Worker) bool { return w.Able == nil })
	if foreign {
		fixed = 0
	}
	n := coord.Number(fixed, split, old, wishes)
	unlike := slices.ContainsFunc(wishes, func(w coord.Wish) bool { return w.Count != n })
	var why string
	switch {
	case len(groups) == 0, n > 0 && fixed > 0, n > 0 && !unlike && !(split && len(wishes) == 0) && !(foreign && c.Fixed > 1):
		return ""
	case old && fixed > 0:
		why = fmt.Sprintf("%d are fixed, and only programs from before partitions run", fixed)
	case foreign:
		why = "1 is wanted while a program of another library runs"
	case old && n == 1:
		why = "1 is wanted while a program from before partitions runs"
	case slices.ContainsFunc(wishes, func(w coord.Wish) bool { return w.Count != wishes[0].Count }) && fixed == 0:
		why = fmt.Sprintf("it stays in %d, as the workers wish for different numbers", max(len(c.Units), 1))
	default:
		why = "it is not split, as the workers have different keys"
	}
	return why + ": " + strings.Join(texts(groups), "; ")
}

// Waiting says which of the live workers do not run a consumer because the code of others
// selects more, and what each selects. It is empty if none does.
func Waiting(c ops.Consumer, live []ops.Worker, place func(ops.Worker) string) string {
	type build struct {
		scope  scope.Scope
		places []string
	}
	var builds []build
	for _, w := range live {
		told, says := w.Scopes[c.Name]
		if !says {
			continue
		}
		s := scope.Of(told.Types, told.Version, "")
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
		all = append(all, fmt.Sprintf("%s %s, selecting %s", some(b.places), does, b.scope.Words()))
	}
	return "the builds select different things: " + strings.Join(all, "; ")
}

// Becoming returns the number of partitions that a consumer is on its way to, 0 if it has
// arrived or is not to change. On the way its units can be as many as are wanted, with
// other borders.
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

// groupsOf are the workers that have the consumer's code, or do not say what they have, in the
// order that they come in.
func groupsOf(consumer string, live []ops.Worker, place func(ops.Worker) string) (groups []group) {
	for _, w := range live {
		if w.Able != nil && !slices.Contains(w.Able, consumer) {
			continue
		}
		var wish coord.Wish
		if w.Wishes != nil {
			wish = coord.Single
		}
		if told, ok := w.Wishes[consumer]; ok && told.Count > 0 {
			wish = coord.Wish(told)
		}
		i := slices.IndexFunc(groups, func(g group) bool { return g.wish == wish })
		if i < 0 {
			i, groups = len(groups), append(groups, group{wish: wish})
		}
		groups[i].places = append(groups[i].places, place(w))
	}
	return groups
}

// texts are the groups in words, the highest number first.
func texts(groups []group) (all []string) {
	slices.SortStableFunc(groups, func(a, b group) int { return b.wish.Count - a.wish.Count })
	for _, g := range groups {
		wish, say := "wishes", "says"
		if len(g.places) > 1 {
			wish, say = "wish", "say"
		}
		text := fmt.Sprintf("%s %s for %d", some(g.places), wish, g.wish.Count)
		switch {
		case g.wish == (coord.Wish{}):
			text = fmt.Sprintf("%s %s nothing of partitions", some(g.places), say)
		case g.wish.Key != "":
			text += " by the key " + g.wish.Key
		}
		all = append(all, text)
	}
	return all
}

// some names the first ones.
func some(places []string) string {
	const named = 3
	if more := len(places) - named; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(places[:named], ", "), more)
	}
	return strings.Join(places, ", ")
}
