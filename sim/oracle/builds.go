package oracle

import (
	"fmt"
	"slices"

	"github.com/pgfrontier/worker/sim/history"
)

// builds judges the types that only some builds of a consumer select. The database says which build
// had its turn.
func builds(e *history.Evidence) Finding {
	f := Finding{Name: "builds", Rule: "an event that only some builds of a consumer select was applied once if such a build took the consumer past it, and else never; no build went on with a consumer while a worker lived whose build selects more"}
	if e.Unread {
		return f
	}
	type at struct {
		consumer string
		position int64
	}
	all, honest := map[at]int{}, map[at]int{}
	broken := brokenBatches(e)
	for _, x := range e.Ledger {
		it := at{x.Consumer, x.Position}
		all[it]++
		if !broken[batch{x.Consumer, x.Batch}] {
			honest[it]++
		}
	}
	f.takeOvers(e)
	for _, c := range e.Consumers {
		for _, event := range e.Committed {
			if c.Wants(event.Type) || !selects(c, event) {
				continue
			}
			least, most := wantedByBuilds(e, c.Name, event)
			it := at{c.Name, event.Position}
			f.check(least <= all[it] && honest[it] <= most, func() string {
				return fmt.Sprintf("%s applied %v %d times, not %d to %d%s", c.Name, event, all[it], least, most, see(e, c.Name, event.Position))
			})
		}
	}
	return f
}

// takeOvers finds builds that went on with a consumer while a build with a greater scope lived.
func (f *Finding) takeOvers(e *history.Evidence) {
	last := map[string]history.Selected{}
	for _, s := range e.Selected {
		before, any := last[s.Consumer]
		last[s.Consumer] = s
		if any {
			f.check(!before.Contested || s.To <= before.To, func() string {
				return fmt.Sprintf("a build that selects %v took %s over at %d while a worker lived that selects more, and went on to %d", s.Types, s.Consumer, before.To, s.To)
			})
		}
	}
}

// wantedByBuilds is how often an event must be applied at least, and at most. Either build may have
// got what was in doubt when one took over from the other.
func wantedByBuilds(e *history.Evidence, consumer string, event history.Event) (least, most int) {
	doubtful, passed := leftToOperators(e, consumer, event.Position), false
	for _, s := range e.Selected {
		if s.Consumer != consumer {
			continue
		}
		doubtful = doubtful || slices.ContainsFunc(s.Open, func(o history.Span) bool { return o.Holds(event.Position) })
		if event.Position <= s.To && !passed {
			passed = true
			most = int(one(len(s.Types) == 0 || slices.Contains(s.Types, event.Type)))
		}
	}
	for _, r := range e.Repairs {
		doubtful = doubtful || r.Consumer == consumer && r.To < event.Position && event.Position <= r.From
	}
	switch {
	case doubtful:
		return 0, 1
	case e.Incomplete:
		return 0, most
	}
	return most, most
}
