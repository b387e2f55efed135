package table

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
		State: func() observe.State { return w.state.Load().(observe.State) }, Loops: w.turns.loops, HangsAfter: w.hangs, Observers: w.observers,
		Answers: func(ctx context.Context) error { return runtime.Answers(ctx, w.store.db.DB, w.limit) }, Reasons: w.reasons,
	}
}

func (t *turns) loops() []runtime.Loop {
	return []runtime.Loop{
		{Name: "that claims jobs", Lasts: t.claims.Lasts()},
		{Name: "of the heartbeats", Lasts: t.beats.Lasts()},
		{Name: "that stores what became of jobs", Lasts: t.settles.Lasts()},
		{Name: "that resets the jobs of lost workers", Lasts: t.resets.Lasts()},
	}
}

// Live returns nil unless only a new process helps. It returns an error if Start has returned or a loop hangs.
// It also returns an error if PreDequeue or a hook of an Observer does not return. The error
// names the cause. Live never asks the database. Package health serves it to an orchestrator.
func (w *Worker) Live() error { return w.probe().Live() }

// Ready returns the reasons why the worker does not do all of its work. It returns nothing if the
// worker does. Ready asks the database whether it answers. Each error is one line, with the remedy
// if the worker knows it. Package health serves the errors to an orchestrator.
//
// The duration is not used: only the table knows the age of a job. Rows that the table refuses to
// change do not count while others are changed. See [Status] for these rows.
func (w *Worker) Ready(ctx context.Context, _ time.Duration) []error { return w.probe().Ready(ctx) }

func (w *Worker) reasons() []error {
	lost, since := w.overdue()
	all := []error{runtime.LostSlots(lost, w.opts.NumHandlers, "", since)}
	for _, what := range []observe.Condition{observe.ConditionClaim, observe.ConditionHeartbeat, observe.ConditionSettle, observe.ConditionReset} {
		if err := w.failing(what); err != nil {
			all = append(all, fmt.Errorf("%w; it is tried again", err))
		}
	}
	return all
}

// overdue counts the runs that were given up and whose handlers have not returned. since is when
// the first of them got its slot. A Scan that was given up does not count.
func (w *Worker) overdue() (n int, since time.Time) {
	return w.inFlight.OverdueOf(func(r *run) bool { return !r.Since().IsZero() })
}

// Status returns a snapshot of the worker. It may be called at any time.
func (w *Worker) Status() Status {
	w.counts.mu.Lock()
	s := w.status
	s.Running = w.taken
	w.counts.mu.Unlock()
	s.Refused.Claim, s.LastSuccess.Claim, s.ClaimError = w.shown(observe.ConditionClaim)
	s.Refused.Heartbeat, s.LastSuccess.Heartbeat, s.HeartbeatError = w.shown(observe.ConditionHeartbeat)
	s.Refused.Settle, s.LastSuccess.Settle, s.SettleError = w.shown(observe.ConditionSettle)
	s.Refused.Reset, s.LastSuccess.Reset, s.ResetError = w.shown(observe.ConditionReset)
	s.LoopError = w.probe().Hanging()
	s.State = w.state.Load().(observe.State)
	s.NumHandlers = w.opts.NumHandlers
	s.Unsettled = w.settler.Unsettled()
	s.Overdue, s.OverdueSince = w.overdue()
	return s
}

// Running returns the jobs that hold slots of this worker, the longest first. It may be called at
// any time, also from a handler.
func (w *Worker) Running() []RunningJob {
	var all []RunningJob
	for _, r := range w.inFlight.Holding() {
		if since := r.Since(); !since.IsZero() { // else its Scan was given up
			all = append(all, RunningJob{Header: r.header, Since: since, Overdue: r.GaveUp()})
		}
	}
	return all
}
