package oracle

import (
	"fmt"

	"github.com/pgfrontier/worker/sim/history"
)

// assigned finds batches of workers that had no right to the consumer any more.
func assigned(e *history.Evidence) Finding {
	f := Finding{Name: "assigned", Rule: "no batch began when its consumer had been assigned to another worker"}
	strange := map[batch]bool{}
	for _, x := range e.Unauthorized {
		strange[batch{x.Consumer, x.Batch}] = true
		f.check(false, func() string {
			return fmt.Sprintf("%s began a batch of %s, which was not assigned to it, in transaction %s", x.Worker, x.Consumer, x.Batch)
		})
	}
	seen := map[batch]bool{}
	for _, x := range e.Ledger {
		if b := (batch{x.Consumer, x.Batch}); !seen[b] && !strange[b] {
			seen[b] = true
			f.check(true, nil)
		}
	}
	return f
}

// leadership finds assignments written by workers that did not lead.
func leadership(e *history.Evidence) Finding {
	f := Finding{Name: "leadership", Rule: "consumers were assigned by the leader only"}
	for _, x := range e.Assignments {
		f.check(x.Led, func() string { return fmt.Sprintf("%s assigned %s and did not lead", x.Worker, x.Consumer) })
	}
	return f
}
