package queue

import (
	"context"
	"fmt"
	"strings"

	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// Operators execute their statements rarely, so the texts are made on each call.

// these is a condition: the job's id is in the list $1.
const these = `id = ANY (ARRAY(SELECT jsonb_array_elements_text($1::jsonb)::bigint))`

// cancelAllSQL ends jobs that the transaction has locked and that do not run. In the history,
// cancel_at is the last of the columns that it copies.
var cancelAllSQL = `
WITH gone AS (
	DELETE FROM {jobs} WHERE ` + these + ` AND state <> 'running' RETURNING *
), told AS MATERIALIZED (
	SELECT pg_notify({ends}, id::text) FROM gone WHERE awaited
)
INSERT INTO {history} ({kept}, state)
SELECT ` + strings.TrimSuffix(kept, `cancel_at`) + `clock_timestamp(), 'cancelled' FROM gone WHERE (SELECT count(*) FROM told) >= 0`

const askAllSQL = `
UPDATE {jobs} SET cancel_at = clock_timestamp() WHERE ` + these + ` AND state = 'running' AND cancel_at IS NULL`

const makeDueSQL = `
WITH new AS (
	UPDATE {jobs} SET run_at = clock_timestamp() WHERE id = $1::bigint AND state = 'available' RETURNING id, queue
)` + notifySQL

const reenqueueSQL = `
WITH new AS (
	INSERT INTO {jobs} (kind, queue, priority, good_until, args, meta, max_attempts, max_resets)
	SELECT kind, queue, priority, CASE WHEN good_until > clock_timestamp() THEN good_until END, args, meta, max_attempts, max_resets
	FROM {history} WHERE id = $1::bigint
	RETURNING id, queue
)` + notifySQL

// notifySQL notifies of a job that is due now, as enqueueSQL does.
const notifySQL = `, told AS MATERIALIZED (
	SELECT pg_notify({news}, new.queue) FROM new
	WHERE EXISTS (SELECT FROM {wanted} AS w WHERE w.queue = new.queue AND w.until > statement_timestamp())
)
SELECT id FROM new WHERE (SELECT count(*) FROM told) >= 0`

// operating fills the names into a statement of operators.
func operating(t tables.Jobs, sql string) string {
	newJobs, ends := ChannelsSQL(t)
	return strings.NewReplacer("{jobs}", t.Jobs.SQL(), "{history}", t.History.SQL(), "{wanted}", t.Wanted.SQL(),
		"{kept}", kept, "{news}", newJobs, "{ends}", ends).Replace(sql)
}

// CancelAll cancels jobs that tx has locked and that do not run.
func (q *Queue) CancelAll(ctx context.Context, tx store.Querier, ids []int64) error {
	return q.onAll(ctx, tx, "cancel", cancelAllSQL, ids)
}

// AskAll asks running jobs to end.
func (q *Queue) AskAll(ctx context.Context, on store.Querier, ids []int64) error {
	return q.onAll(ctx, on, "ask for the end", askAllSQL, ids)
}

func (q *Queue) onAll(ctx context.Context, on store.Querier, what, statement string, ids []int64) error {
	given, err := list(ids)
	if err == nil {
		_, err = on.ExecContext(ctx, operating(q.tables, statement), given)
	}
	if err != nil {
		return fmt.Errorf("jobs: %s: %w", what, err)
	}
	return nil
}

// MakeDue makes a waiting job due now. It returns sql.ErrNoRows if the job is not available.
func (q *Queue) MakeDue(ctx context.Context, on store.Querier, id int64) error {
	if err := on.QueryRowContext(ctx, operating(q.tables, makeDueSQL), id).Scan(&id); err != nil {
		return fmt.Errorf("jobs: make job %d due: %w", id, err)
	}
	return nil
}

// Reenqueue copies a finished job to a new job, due now and without a unique key. It returns
// the new id. It returns sql.ErrNoRows if the history has no such job.
func (q *Queue) Reenqueue(ctx context.Context, on store.Querier, id int64) (as int64, err error) {
	if err := on.QueryRowContext(ctx, operating(q.tables, reenqueueSQL), id).Scan(&as); err != nil {
		return 0, fmt.Errorf("jobs: enqueue job %d again: %w", id, err)
	}
	return as, nil
}
