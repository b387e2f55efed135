package oracle

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pgfrontier/worker/sim/history"
)

// effects finds deliveries that misled the handler about effects. The ledger knows what
// the consumer has applied, whatever resets, splits and merges came in between. Where a
// handler broke the rules, an effect may be there of which the worker cannot know.
func effects(e *history.Evidence) Finding {
	f := Finding{Name: "effects", Rule: "an event was delivered as a replay if, and only if, its consumer had applied it before or began behind it"}
	type at struct {
		consumer string
		position int64
	}
	placed := map[string]int64{}
	for _, p := range e.Placements {
		placed[p.Consumer] = p.Position
	}
	versions := versionsOf(e)
	broken := brokenBatches(e)
	had, unsure := map[at]bool{}, map[at]bool{}
	for _, x := range e.Ledger {
		unsure[at{x.Consumer, x.Position}] = unsure[at{x.Consumer, x.Position}] || broken[batch{x.Consumer, x.Batch}]
	}
	for _, x := range e.Ledger {
		it := at{x.Consumer, x.Position}
		if unsure[it] || leftToOperators(e, x.Consumer, x.Position) || versions[whole(x.Consumer)] {
			continue
		}
		want := had[it] || x.Position <= placed[x.Consumer]
		f.check(x.Replay == want, func() string {
			if want {
				return fmt.Sprintf("%s was given %v again in transaction %s, not as a replay%s", x.Consumer, x.Event, x.Batch, see(e, x.Consumer, x.Position))
			}
			return fmt.Sprintf("%s was given %v as a replay in transaction %s, and had not applied it%s", x.Consumer, x.Event, x.Batch, see(e, x.Consumer, x.Position))
		})
		had[it] = true
	}
	if len(versions) > 0 {
		f.Rule += "; of two versions of a consumer, one was given it once, not as a replay"
		f.onceOver(e, versions, broken)
	}
	return f
}

// versionsOf returns the names of the consumers that are versions of each other.
func versionsOf(e *history.Evidence) map[string]bool {
	all := map[string]bool{}
	for _, c := range e.Consumers {
		if c.NextOf != "" {
			all[c.NextOf], all[whole(c.Name)] = true, true
		}
	}
	return all
}

// whole returns the consumer of a range.
func whole(name string) string {
	consumer, _, _ := strings.Cut(name, "#")
	return consumer
}

// onceOver checks that an event has its effects once over all versions. An event that an operator let
// one of the versions leave out may have none.
func (f *Finding) onceOver(e *history.Evidence, versions map[string]bool, broken map[batch]bool) {
	acted, unsure := map[int64][]history.Entry{}, map[int64]bool{}
	for _, x := range e.Ledger {
		if !versions[whole(x.Consumer)] {
			continue
		}
		unsure[x.Position] = unsure[x.Position] || broken[batch{x.Consumer, x.Batch}]
		if !x.Replay {
			acted[x.Position] = append(acted[x.Position], x)
		}
	}
	courses := map[string]course{}
	for _, c := range e.Consumers {
		if versions[whole(c.Name)] {
			courses[c.Name] = courseOf(e, c.Name)
		}
	}
	for _, event := range e.Committed {
		leftOut := e.Incomplete || e.Unread
		for _, c := range e.Consumers {
			if course, of := courses[c.Name]; of && wants(c, event) {
				unsure[event.Position] = unsure[event.Position] || leftToOperators(e, c.Name, event.Position)
				leftOut = leftOut || slices.Contains(course.wanted(event.Position), false)
			}
		}
		by := acted[event.Position]
		f.check(unsure[event.Position] || len(by) == 1 || len(by) == 0 && leftOut, func() string {
			if len(by) == 0 {
				return fmt.Sprintf("no version of its consumer was given %v, other than as a replay", event)
			}
			return fmt.Sprintf("%s was given %v in transaction %s, then %s in transaction %s, neither time as a replay%s",
				by[0].Consumer, event, by[0].Batch, by[1].Consumer, by[1].Batch, see(e, by[0].Consumer, event.Position))
		})
	}
}
