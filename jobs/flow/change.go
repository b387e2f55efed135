package flow

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/pgfrontier/worker/internal/changes"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/jobs"
)

// lock locks a run until the end of the transaction, and returns its state.
func (c *Client) lock(ctx context.Context, on jobs.Querier, run int64) (s jobs.State, cancelled bool, err error) {
	err = on.QueryRowContext(ctx, c.sql.lock, run).Scan(&s, &cancelled)
	if errors.Is(err, sql.ErrNoRows) {
		err = c.notFound(ctx, on)
	}
	return s, cancelled, err
}

// Cancel cancels a run. Steps that have not begun do not begin. The contexts of running jobs end,
// as with [jobs.Client.Cancel]. The run ends with its last running step.
//
// Cancel returns the state of the run before the call. A finished run stays as it is. The run is
// locked until the end of tx. If tx is nil or a *sql.DB, Cancel uses a transaction of its own.
//
// Steps of [OnFailure] and [OnEnd] do not begin either: clean up where you cancel.
func (c *Client) Cancel(ctx context.Context, tx jobs.Querier, run int64) (was jobs.State, err error) {
	was, err = inTx(ctx, c, tx, func(on jobs.Querier) (jobs.State, error) {
		was, cancelled, err := c.lock(ctx, on, run)
		if err != nil || was != jobs.StateRunning || cancelled {
			return was, err
		}
		return was, c.cancel(ctx, on, run)
	})
	if err != nil {
		return "", errtext.Of(fmt.Errorf("flow: cancel run %d: %w", run, err))
	}
	return was, nil
}

// cancel cancels a run that the transaction has locked.
func (c *Client) cancel(ctx context.Context, on jobs.Querier, run int64) error {
	for _, statement := range []string{c.sql.cancel, c.sql.shrink, c.sql.stop} {
		if _, err := on.ExecContext(ctx, statement, run); err != nil {
			return err
		}
	}
	var steps, all, waiting, running []int64
	_, err := pgdriver.QueryAll(ctx, on, func(r *sql.Rows) (none struct{}, err error) {
		var step, job int64
		err = r.Scan(&step, &job)
		steps, all = append(steps, step), append(all, job)
		return none, err
	}, c.sql.enqueued, run)
	if err != nil {
		return err
	}
	_, err = pgdriver.QueryAll(ctx, on, func(r *sql.Rows) (none struct{}, err error) {
		var job int64
		var runs bool
		if err = r.Scan(&job, &runs); runs {
			running = append(running, job)
		} else {
			waiting = append(waiting, job)
		}
		return none, err
	}, c.sql.hold, list(all))
	if err != nil {
		return err
	}
	if err := c.core.Queue.CancelAll(ctx, on, waiting); err != nil {
		return err
	}
	if err := c.core.Queue.AskAll(ctx, on, running); err != nil {
		return err
	}
	if len(running) > 0 {
		if err := changes.Wake(ctx, on, c.core.Tables.Changes); err != nil {
			return err
		}
	}
	return c.sql.round(on).advance(ctx, steps)
}

// Retry continues a run that has ended. The named steps begin again, and so do the steps that
// depend on them. Without names, Retry repeats the steps whose failure made the run fail, or that
// were cancelled with the run. Of a [Map] step it repeats the failed jobs. The other steps keep
// their ends and results. The run keeps the shape in which it was started. The run is locked until
// the end of tx. If tx is nil or a *sql.DB, Retry uses a transaction of its own.
//
// Retry skips steps that completed in spite of a failed step, by [Any], [Quorum] or another way. It
// skips such a failed step too, unless it is named. To retry a completed run, name the steps.
//
// An [OnEnd] step runs again after the steps that it depends on. An [OnFailure] step that ran
// before and is not needed now is skipped. Its effects stay: undo them first.
func (c *Client) Retry(ctx context.Context, tx jobs.Querier, run int64, from ...string) error {
	_, err := inTx(ctx, c, tx, func(on jobs.Querier) (none struct{}, err error) {
		s, _, err := c.lock(ctx, on, run)
		switch {
		case err != nil:
			return none, err
		case s == jobs.StateRunning:
			return none, ErrUnfinished
		}
		return none, c.retry(ctx, on, run, s == jobs.StateCancelled, from)
	})
	if pgdriver.SQLState(err) == pgdriver.UniqueViolation {
		err = ErrKeyBusy
	}
	if err != nil {
		return errtext.Of(fmt.Errorf("flow: retry run %d: %w", run, err))
	}
	return nil
}

// retry restarts a run that the transaction has locked.
func (c *Client) retry(ctx context.Context, on jobs.Querier, run int64, cancelled bool, from []string) error {
	ended, err := pgdriver.QueryAll(ctx, on, func(r *sql.Rows) (s endedStep, err error) {
		var edges string
		if err = r.Scan(&s.id, &s.name, &s.state, &s.mapped, &s.quorum, &s.leaf, &s.failed, &s.good, &edges); err == nil {
			s.edges, err = parseEdges(edges)
		}
		return s, err
	}, c.sql.edges, run)
	if err != nil {
		return err
	}
	plan, err := resume(ended, cancelled, from)
	if err != nil {
		return err
	}
	if len(plan.forget) > 0 {
		if _, err := on.ExecContext(ctx, c.sql.forget, list(plan.forget)); err != nil {
			return err
		}
	}
	again, err := json.Marshal(plan.again)
	if err != nil {
		return err
	}
	if _, err := on.ExecContext(ctx, c.sql.revive, run, string(again), plan.bad); err != nil {
		return err
	}
	moved := make([]movedStep, len(plan.again))
	for i, a := range plan.again {
		moved[i] = movedStep{int64(a.ID), a.State}
	}
	return c.sql.round(on).proceed(ctx, moved)
}
