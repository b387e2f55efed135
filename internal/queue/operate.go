package queue

import (
	"context"
	"fmt"
	"strings"

	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// The statements of operators are rare, so they are made when they are needed.

// these are the jobs of the list of ids $1.
const these = `id = ANY (ARRAY(SELECT jsonb_array_elements_text($1::jsonb)::bigint))`

// cancelAllSQL ends jobs that the transaction has locked, and that do not run. What
// they take along has cancel_at as the last column.
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

const hastenSQL = `
WITH new AS (
	UPDATE {jobs} SET run_at = clock_timestamp() WHERE id = $1::bigint AND state = 'available' RETURNING id, queue
)` + toldSQL

const againSQL = `
WITH new AS (
	INSERT INTO {jobs} (kind, queue, priority, good_until, args, meta, max_attempts, max_resets)
	SELECT kind, queue, priority, CASE WHEN good_until > clock_timestamp() THEN good_until END, args, meta, max_attempts, max_resets
	FROM {history} WHERE id = $1::bigint
	RETURNING id, queue
)` + toldSQL

// toldSQL tells of a job that is due now, as enqueueSQL does.
const toldSQL = `, told AS MATERIALIZED (
	SELECT pg_notify({news}, new.queue) FROM new
	WHERE EXISTS (SELECT FROM {wanted} AS w WHERE w.queue = new.queue AND w.until > statement_timestamp())
)
SELECT id FROM new WHERE (SELECT count(*) FROM told) >= 0`

// operating fills in the names of a statement of operators.
func operating(t tables.Jobs, sql string) string {
	news, ends := ChannelsSQL(t)
	return strings.NewReplacer("{jobs}", t.Jobs.SQL(), "{history}", t.History.SQL(), "{wanted}", t.Wanted.SQL(),
		"{kept}", kept, "{news}", news, "{ends}", ends).Replace(sql)
}

// CancelAll cancels jobs that the transaction tx has locked, and that do not run.
func (q *Queue) CancelAll(ctx context.Context, tx store.Querier, ids []int64) error {
	return q.onAll(ctx, tx, "cancel", cancelAllSQL, ids)
}

// AskAll asks for the end of jobs that run.
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

// Hasten makes a job due that is not yet. It returns sql.ErrNoRows if the job is not
// available.
func (q *Queue) Hasten(ctx context.Context, on store.Querier, id int64) error {
	if err := on.QueryRowContext(ctx, operating(q.tables, hastenSQL), id).Scan(&id); err != nil {
		return fmt.Errorf("jobs: make job %d due: %w", id, err)
	}
	return nil
}

// Again enqueues a finished job as a new one, due now and without a unique key, and
// returns its id. It returns sql.ErrNoRows if there is no such job in the history.
func (q *Queue) Again(ctx context.Context, on store.Querier, id int64) (as int64, err error) {
	if err := on.QueryRowContext(ctx, operating(q.tables, againSQL), id).Scan(&as); err != nil {
		return 0, fmt.Errorf("jobs: enqueue job %d again: %w", id, err)
	}
	return as, nil
}
