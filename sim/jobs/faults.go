package jobs

import (
	"context"

	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/stage"
)

// faultRow is a fault of a run of jobs: what it is, when it is on, and how it is
// injected.
type faultRow struct {
	fault.Row

	seldom bool // few seeds draw it: it takes long
	outage bool // the server goes away, and comes back
	async  bool // somebody does not wait for commits to be safe

	// How it is injected: into a worker as it starts or at a point, by an operator now and
	// then, in what a handler is told to do, or by an enqueuer in place of a plain commit. A
	// row without any is a setting, which is read by name.
	build    stage.Build[Scenario]
	worker   []injection
	operator func(o *operator, ctx, intake context.Context) error
	act      string
	end      ending
}
