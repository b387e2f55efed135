package queue

import (
	"context"
	"fmt"

	"github.com/pgfrontier/worker/store"
)

// CancelAll cancels jobs that tx has locked and that do not run.
func (q *Queue) CancelAll(ctx context.Context, tx store.Querier, ids []int64) error {
	return q.onAll(ctx, tx, "cancel", q.sql.cancelAll, ids)
}

// AskAll asks running jobs to end.
func (q *Queue) AskAll(ctx context.Context, on store.Querier, ids []int64) error {
	return q.onAll(ctx, on, "ask for the end", q.sql.askAll, ids)
}

func (q *Queue) onAll(ctx context.Context, on store.Querier, what, statement string, ids []int64) error {
	given, err := list(ids)
	if err == nil {
		_, err = on.ExecContext(ctx, statement, given)
	}
	if err != nil {
		return fmt.Errorf("jobs: %s: %w", what, err)
	}
	return nil
}

// MakeDue makes a waiting job due now. It returns sql.ErrNoRows if the job is not available.
func (q *Queue) MakeDue(ctx context.Context, on store.Querier, id int64) error {
	if err := on.QueryRowContext(ctx, q.sql.makeDue, id).Scan(&id); err != nil {
		return fmt.Errorf("jobs: make job %d due: %w", id, err)
	}
	return nil
}

// Reenqueue copies a finished job to a new job, due now and without a unique key. It returns
// the new id. It returns sql.ErrNoRows if the history has no such job.
func (q *Queue) Reenqueue(ctx context.Context, on store.Querier, id int64) (as int64, err error) {
	if err := on.QueryRowContext(ctx, q.sql.reenqueue, id).Scan(&as); err != nil {
		return 0, fmt.Errorf("jobs: enqueue job %d again: %w", id, err)
	}
	return as, nil
}
