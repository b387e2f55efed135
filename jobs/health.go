package jobs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// Live returns nil unless only a new process helps: Start has returned, or the loop of
// the heartbeats hangs. It never asks the database.
// Package health serves it to an orchestrator.
func (w *Worker) Live() error {
	if w.state.Load() == WorkerStopped {
		return errors.New("the worker has stopped: start the process again; what Start returned says why")
	}
	if w.state.Load() != WorkerRunning || !w.isReady() {
		return nil
	}
	if c := w.coord.Status(); !c.LastTurn.IsZero() {
		if still := time.Since(c.LastTurn); still > w.cfg.heartbeat+hangs {
			return fmt.Errorf("the loop of the heartbeats has hung for %v: a hook or a driver that does not return keeps it; start the process again, and see the stacks that SIGQUIT prints", still.Round(time.Second))
		}
	}
	return nil
}

// hangs is after what time a loop hangs, beyond its longest pause.
const hangs = 2 * time.Minute

// Ready returns why the worker does not do all of its work, nothing if it does. It asks
// the database for a sign of life. Each error is one line, with the remedy. Package health
// serves them to an orchestrator. The duration is not used: a job may be due for long
// in good health, behind a cap or jobs of higher priority. Watch Queues of ops.Jobs.
func (w *Worker) Ready(ctx context.Context, _ time.Duration) (all []error) {
	s := w.Status()
	if s.State != WorkerRunning {
		return []error{fmt.Errorf("the worker is %s: wait if it starts or drains, start the process again if it has stopped", s.State)}
	}
	ctx, cancel := context.WithTimeout(ctx, w.limit)
	defer cancel()
	if err := pgdriver.Answers(ctx, w.db); err != nil {
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
	}
	return all
}
