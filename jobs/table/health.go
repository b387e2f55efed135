package table

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/watchdog"
	"github.com/pgfrontier/worker/observe"
)

// turns are the watchdogs of the loops.
type turns struct{ claims, beats, settles, resets watchdog.Iteration }

// Live returns nil unless only a new process helps. It returns an error if Start has returned or a loop hangs.
// It also returns an error if PreDequeue or a hook of an Observer does not return. The error
// names the cause. Live never asks the database. Package health serves it to an orchestrator.
func (w *Worker) Live() error {
	switch w.state.Load() {
	case WorkerStopped:
		return errors.New("the worker has stopped: start the process again; what Start returned says why")
	case WorkerRunning:
	default:
		return nil
	}
	hung := func(loop string, lasts time.Duration) error { return watchdog.Hung(loop, lasts, w.hangs) }
	hook, lasts := w.observers.Longest()
	return cmp.Or(
		hung("that claims jobs", w.turns.claims.Lasts()),
		hung("of the heartbeats", w.turns.beats.Lasts()),
		hung("that stores what became of jobs", w.turns.settles.Lasts()),
		hung("that resets the jobs of lost workers", w.turns.resets.Lasts()),
		hung("that calls the observer's "+hook, lasts), // a loop without a watchdog
	)
}

// Ready returns the reasons why the worker does not do all of its work. It returns nothing if the
// worker does. Ready asks the database whether it answers. Each error is one line, with the remedy.
// Package health serves the errors to an orchestrator.
//
// The duration is not used: only the table knows the age of a job. Rows that the table refuses to
// change do not count while others are changed. See [Status] for these rows.
func (w *Worker) Ready(ctx context.Context, _ time.Duration) (all []error) {
	if s := w.state.Load(); s != WorkerRunning {
		return []error{fmt.Errorf("the worker is %s: wait if it starts or drains, start the process again if it has stopped", s)}
	}
	ctx, cancel := context.WithTimeout(ctx, w.limit)
	defer cancel()
	if err := pgdriver.Answers(ctx, w.store.db.DB); err != nil {
		all = append(all, fmt.Errorf("the database does not answer: see that the server runs and can be reached from here: %w", errtext.Of(err)))
	}
	if err := w.Live(); err != nil {
		all = append(all, err)
	}
	if lost, since := w.inFlight.overdueNow(); lost >= w.opts.NumHandlers {
		all = append(all, fmt.Errorf("handlers that were given up keep all %d slots, the first since %s: start the process again, with handlers that return when their context ends", lost, since.UTC().Format(time.DateTime+"Z")))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, what := range []observe.Condition{observe.ConditionClaim, observe.ConditionHeartbeat, observe.ConditionSettle, observe.ConditionReset} {
		if err := w.errs[what]; err != nil {
			all = append(all, fmt.Errorf("%w; it is tried again", err))
		}
	}
	return all
}
