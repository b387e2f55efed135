package oracle

import (
	"fmt"

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
	broken := brokenBatches(e)
	had, unsure := map[at]bool{}, map[at]bool{}
	for _, x := range e.Ledger {
		unsure[at{x.Consumer, x.Position}] = unsure[at{x.Consumer, x.Position}] || broken[batch{x.Consumer, x.Batch}]
	}
	for _, x := range e.Ledger {
		it := at{x.Consumer, x.Position}
		if unsure[it] || leftToOperators(e, x.Consumer, x.Position) {
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
	return f
}
