package queue

import (
	"context"
	"fmt"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// Operator changes jobs for programs and operators.
type Operator struct {
	tables tables.Jobs
	sql    operateSQL
}

type operateSQL struct{ cancel, cancelAll, askAll, makeDue, reenqueue string }

// CancelAll cancels jobs that tx has locked and that do not run.
func (q *Operator) CancelAll(ctx context.Context, tx store.Querier, ids []int64) error {
	return onAll(ctx, tx, "cancel", q.sql.cancelAll, ids)
}

// AskAll asks running jobs to end.
func (q *Operator) AskAll(ctx context.Context, on store.Querier, ids []int64) error {
	return onAll(ctx, on, "ask for the end", q.sql.askAll, ids)
}

func onAll(ctx context.Context, on store.Querier, what, statement string, ids []int64) error {
	given, _ := list(ids) // each number has a JSON form
	return exec(ctx, on, what, statement, given)
}

// MakeDue makes a waiting job due now. It returns sql.ErrNoRows if the job is not available.
func (q *Operator) MakeDue(ctx context.Context, on store.Querier, id int64) error {
	return readRow(ctx, on, fmt.Sprintf("make job %d due", id), q.sql.makeDue, []any{id}, &id)
}

// Reenqueue copies a finished job to a new job, due now and without a unique key. It returns
// the new id. It returns sql.ErrNoRows if the history has no such job.
func (q *Operator) Reenqueue(ctx context.Context, on store.Querier, id int64) (as int64, err error) {
	err = readRow(ctx, on, fmt.Sprintf("enqueue job %d again", id), q.sql.reenqueue, []any{id}, &as)
	return as, err
}

// ExplainDuplicate adds the remedy to the error of a job that cannot end since the history already has its id.
func (q *Operator) ExplainDuplicate(id int64, err error) error {
	if pgdriver.SQLState(err) != pgdriver.UniqueViolation {
		return err
	}
	return fmt.Errorf("%s already has a job with this id; other jobs are not affected: raise the sequence of %s (pgfrontier sequences --raise), and delete the earlier job or give it another id (UPDATE %s SET id = -id WHERE id = %d): %w",
		q.tables.History, q.tables.Jobs, q.tables.History.SQL(), id, errtext.Of(err))
}

// Cancel ends a job that does not run, and asks a running job to end. It returns the state of
// the job before, or "" if there is no unfinished job with the id.
func (q *Operator) Cancel(ctx context.Context, on store.Querier, id int64) (was State, err error) {
	err = on.QueryRowContext(ctx, q.sql.cancel, id).Scan(&was)
	if err != nil {
		return "", fmt.Errorf("jobs: cancel job %d: %w", id, q.ExplainDuplicate(id, err))
	}
	return was, nil
}
