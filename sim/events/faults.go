package events

import (
	"context"

	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/stage"
)

// faultRow is a fault: what it is, when it is on, and how it is injected.
type faultRow struct {
	fault.Row

	always  bool // every seed draws it: the oracle needs it
	listens bool // runs with it have the notify dispatcher
	outage  bool // the server goes away, and comes back
	async   bool // somebody does not wait for commits to be safe

	// How it is injected: into a worker as it starts or at a moment of a batch, into a
	// handler at each event, or by a writer in place of a plain append. A row without any
	// is a setting, which is read by name.
	build   stage.Build[Scenario]
	worker  []injection
	handler func(s *shared, ctx context.Context, b *LedgerConsumer, d Delivered, intensity float64) (done bool, err error)
	writer  []operation
}
