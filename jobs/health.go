package jobs

import (
	"context"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/observe"
)

// probe returns the probe of the worker.
func (w *Worker) probe() runtime.Probe {
	return runtime.Probe{
		State: func() observe.State { return w.state.Load().(observe.State) }, Loops: w.iterations, HangsAfter: w.hangsAfter, Observers: w.observers,
		Answers: func(ctx context.Context) error { return runtime.Answers(ctx, w.db.DB, w.limit) }, Reasons: w.reasons,
	}
}

// iterations returns how long the current iterations of the loops have taken.
func (w *Worker) iterations() (all []runtime.Loop) {
	if c := w.coord.Status(); !c.LastTurn.IsZero() {
		all = append(all, runtime.Loop{Name: "of the heartbeats", Lasts: time.Since(c.LastTurn) - w.cfg.heartbeat})
	}
	for _, l := range w.loops {
		all = append(all, runtime.Loop{Name: fmt.Sprintf("of queue %q", l.name), Lasts: l.turn.Lasts()})
	}
	return append(all,
		runtime.Loop{Name: "that stores what became of jobs", Lasts: w.settler.turn.Lasts()},
		runtime.Loop{Name: "that resets the jobs of the dead", Lasts: w.rescuer.turn.Lasts()},
		runtime.Loop{Name: "that removes what is old", Lasts: w.maintenance.turn.Lasts()},
	)
}

// Live returns nil unless only a new process helps. It returns an error if Start has returned or a loop hangs.
// It also returns an error if a hook of an observer does not return. The error names the cause.
// A worker that an operator has drained is live. Live never asks the database. Package health
// serves it to an orchestrator.
func (w *Worker) Live() error { return w.probe().Live() }

// Ready returns the reasons why the worker does not do all of its work. It returns nothing if the
// worker does. Ready asks the database whether it answers. Each error is one line, with the remedy
// if the worker knows it. Package health serves the errors to an orchestrator.
//
// The duration is not used. A job may be due for long without a fault, behind a cap or jobs of
// higher priority. Watch Queues of ops.Jobs instead. Refused of [QueueStatus] does not count.
func (w *Worker) Ready(ctx context.Context, _ time.Duration) []error { return w.probe().Ready(ctx) }

func (w *Worker) reasons() []error {
	s := w.Status()
	all := []error{s.CoordinationError, s.SettleError, runtime.LateHeartbeat(s.LastHeartbeat, w.cfg.heartbeatTimeout, "take its jobs for lost")}
	for _, q := range s.Queues {
		if q.LastError != nil && q.Refused == 0 {
			all = append(all, fmt.Errorf("claims of queue %q fail: %w", q.Name, q.LastError))
		}
		all = append(all, runtime.LostSlots(q.Overdue, q.Concurrency, fmt.Sprintf(" of queue %q", q.Name), q.OverdueSince))
	}
	return all
}
