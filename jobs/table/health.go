package table

import (
	"context"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/internal/watchdog"
	"github.com/pgfrontier/worker/observe"
)

// turns are the watchdogs of the loops.
type turns struct{ claims, beats, settles, resets watchdog.Iteration }

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
// worker does. Ready asks the database whether it answers. Each error is one line, with the remedy.
// Package health serves the errors to an orchestrator.
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
