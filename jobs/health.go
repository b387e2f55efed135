package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/watchdog"
)

// Live returns nil unless only a new process helps. It returns an error if Start has returned or a loop hangs.
// It also returns an error if a hook of an observer does not return. The error names the cause.
// A worker that an operator has drained is live. Live never asks the database. Package health
// serves it to an orchestrator.
func (w *Worker) Live() error {
	if w.state.Load() == WorkerStopped {
		return errors.New("the worker has stopped: start the process again; what Start returned says why")
	}
	if w.state.Load() != WorkerRunning || !w.isReady() {
		return nil
	}
	if c := w.coord.Status(); !c.LastTurn.IsZero() {
		if err := w.hung("of the heartbeats", time.Since(c.LastTurn)-w.cfg.heartbeat); err != nil {
			return err
		}
	}
	for _, l := range w.loops {
		if err := w.hung(fmt.Sprintf("of queue %q", l.name), l.turn.Lasts()); err != nil {
			return err
		}
	}
	hook, lasts := w.observers.Longest()
	return cmp.Or(
		w.hung("that stores what became of jobs", w.settler.turn.Lasts()),
		w.hung("that resets the jobs of the dead", w.rescuer.turn.Lasts()),
		w.hung("that removes what is old", w.maintenance.turn.Lasts()),
		w.hung("that calls the observer's "+hook, lasts), // a loop without a watchdog: it listens, sweeps the pool, or advances flows
	)
}

func (w *Worker) hung(loop string, lasts time.Duration) error {
	return watchdog.Hung(loop, lasts, w.hangsAfter)
}

// Ready returns the reasons why the worker does not do all of its work. It returns nothing if the
// worker does. Ready asks the database whether it answers. Each error is one line, with the remedy.
// Package health serves the errors to an orchestrator.
//
// The duration is not used. A job may be due for long without a fault, behind a cap or jobs of
// higher priority. Watch Queues of ops.Jobs instead.
func (w *Worker) Ready(ctx context.Context, _ time.Duration) (all []error) {
	s := w.Status()
	if s.State == WorkerDrained {
		return []error{errors.New("the worker is drained, as an operator has asked: start the process again when it is to work")}
	}
	if s.State != WorkerRunning {
		return []error{fmt.Errorf("the worker is %s: wait if it starts or drains, start the process again if it has stopped", s.State)}
	}
	ctx, cancel := context.WithTimeout(ctx, w.limit)
	defer cancel()
	if err := pgdriver.Answers(ctx, w.db.DB); err != nil {
		all = append(all, fmt.Errorf("the database does not answer: see that the server runs and can be reached from here: %w", errtext.Of(err)))
	}
	for _, err := range []error{w.Live(), s.CoordinationError, s.SettleError} {
		if err != nil {
			all = append(all, err)
		}
	}
	if beaten := time.Since(s.LastHeartbeat); beaten > w.cfg.heartbeatTimeout {
		all = append(all, fmt.Errorf("the last heartbeat was %v ago, so other workers take its jobs for lost (the timeout is %v): see that the database answers, and that the pool has a connection left", beaten.Round(time.Second), w.cfg.heartbeatTimeout))
	}
	for _, q := range s.Queues {
		if q.LastError != nil {
			all = append(all, fmt.Errorf("no jobs can be claimed of queue %q: %w", q.Name, q.LastError))
		}
		if q.Overdue > 0 && q.Overdue >= q.Concurrency {
			all = append(all, fmt.Errorf("handlers that were given up keep all %d slots of queue %q, the first since %s: start the process again, with handlers that return when their context ends", q.Concurrency, q.Name, q.OverdueSince.UTC().Format(time.DateTime+"Z")))
		}
	}
	return all
}
