package queue

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// Lost returns at most most running jobs of dead workers, the first ones, without the jobs in
// out. with is the beginning of a statement, up to a CTE "dead" with the worker_ids of the
// dead. args are its arguments.
func (q *Queue) Lost(ctx context.Context, on store.Querier, out []int64, most int, with string, args ...any) (ids []int64, err error) {
	text, args := listed(with+"\n"+q.sql.lost, most, args, out)
	ids, err = pgdriver.QueryAll(ctx, on, scanID, text, args...)
	if err != nil {
		return nil, fmt.Errorf("jobs: select jobs of dead workers: %w", err)
	}
	return ids, nil
}

// Reset resets those of the jobs that [Queue.Lost] would find. The statement that resets the
// jobs also decides which workers are dead. Jobs that had started and were reset too often
// fail. Reset returns how many jobs run again, and how many have failed.
func (q *Queue) Reset(ctx context.Context, on store.Querier, ids []int64, with string, args ...any) (back, ended int, err error) {
	text, args := listed(with+q.sql.reset, 0, args, ids)
	err = on.QueryRowContext(ctx, text, args...).Scan(&back, &ended)
	if err != nil {
		return 0, 0, fmt.Errorf("jobs: reset the jobs of dead workers: %w", err)
	}
	return back, ended, nil
}

// listed puts a limit into a statement, and appends a list of ids to its arguments.
func listed(text string, most int, args []any, ids []int64) (string, []any) {
	args = append(slices.Clone(args), pgdriver.Array(ids))
	return strings.NewReplacer("{limit}", strconv.Itoa(pgdriver.RoundLimit(most)), "{ids}", "$"+strconv.Itoa(len(args))).Replace(text), args
}

// Expirable returns at most most jobs that no worker claimed in time, the first ones, without
// the jobs in out.
func (q *Queue) Expirable(ctx context.Context, on store.Querier, out []int64, most int) (ids []int64, err error) {
	text, args := listed(q.sql.expirable, most, nil, out)
	ids, err = pgdriver.QueryAll(ctx, on, scanID, text, args...)
	if err != nil {
		return nil, fmt.Errorf("jobs: select jobs that expire: %w", err)
	}
	return ids, nil
}

// Expire ends those of the jobs that no worker claimed in time, and returns their ids.
func (q *Queue) Expire(ctx context.Context, on store.Querier, ids []int64) (expired []int64, err error) {
	expired, err = pgdriver.QueryAll(ctx, on, scanID, q.sql.expire, pgdriver.Array(ids))
	if err != nil {
		return nil, fmt.Errorf("jobs: expire: %w", err)
	}
	return expired, nil
}

// Claimers returns the workers that have running jobs but no row.
func (q *Queue) Claimers(ctx context.Context, on store.Querier) ([]uuid.UUID, error) {
	ids, err := pgdriver.QueryAll(ctx, on, pgdriver.Value[uuid.UUID], q.sql.claimers)
	if err != nil {
		return nil, fmt.Errorf("jobs: select jobs of workers without a row: %w", err)
	}
	return ids, nil
}

// Unknown returns some kinds of jobs that are due in a queue and not in kinds.
func (q *Queue) Unknown(ctx context.Context, on store.Querier, queue string, kinds []string) (unknown []string, err error) {
	given, err := list(kinds)
	if err == nil {
		unknown, err = pgdriver.QueryAll(ctx, on, pgdriver.Value[string], q.sql.unknown, queue, given)
	}
	if err != nil {
		return nil, fmt.Errorf("jobs: select unknown kinds in queue %q: %w", queue, err)
	}
	return unknown, nil
}

// Unserved returns queues that have due jobs but no worker that claims from them.
func (q *Queue) Unserved(ctx context.Context, on store.Querier) (queues []string, err error) {
	queues, err = pgdriver.QueryAll(ctx, on, pgdriver.Value[string], q.sql.unserved)
	if err != nil {
		return nil, fmt.Errorf("jobs: select queues without a worker: %w", err)
	}
	return queues, nil
}

// Unadvanced reports whether some runs of flows have not ended, but no worker advances them. It
// returns false for a role that may not read their tables.
func (q *Queue) Unadvanced(ctx context.Context, on store.Querier) (unadvanced bool, err error) {
	err = on.QueryRowContext(ctx, texts["may_read_flows"], q.tables.FlowRuns.SQL(), q.tables.FlowSweep.SQL()).Scan(&unadvanced)
	if err == nil && unadvanced {
		err = on.QueryRowContext(ctx, q.sql.unadvanced).Scan(&unadvanced)
	}
	if err != nil {
		return false, fmt.Errorf("jobs: select flows without a worker that advances them: %w", err)
	}
	return unadvanced, nil
}

// Retained returns the queues that have finished jobs.
func (q *Queue) Retained(ctx context.Context, on store.Querier) (queues []string, err error) {
	queues, err = pgdriver.QueryAll(ctx, on, pgdriver.Value[string], q.sql.retained)
	if err != nil {
		return nil, fmt.Errorf("jobs: select queues with finished jobs: %w", err)
	}
	return queues, nil
}

// Finished is a position in the order in which finished jobs are removed. The zero Finished is
// before the first job.
type Finished struct {
	At time.Time
	ID int64
}

// Retainable returns finished jobs of a queue that are older than the queue's retention, by
// default keep. keep 0 means for ever. It returns at most most jobs after the position after,
// without the jobs in out. It also returns the position of the last job. A job whose end
// commits late may be before the position.
func (q *Queue) Retainable(ctx context.Context, on store.Querier, queue string, keep time.Duration, after Finished, out []int64, most int) (ids []int64, last Finished, err error) {
	given := sql.NullInt64{Int64: keep.Microseconds(), Valid: keep > 0}
	from := sql.NullString{String: after.At.Format(time.RFC3339Nano), Valid: !after.At.IsZero()}
	text, args := listed(q.sql.retainable, most, []any{given, queue, from, after.ID}, out)
	last = after
	ids, err = pgdriver.QueryAll(ctx, on, func(r *sql.Rows) (id int64, err error) {
		err = r.Scan(&id, &last.At)
		last = Finished{last.At.UTC(), id}
		return id, err
	}, text, args...)
	if err != nil {
		return nil, after, fmt.Errorf("jobs: select old finished jobs of queue %q: %w", queue, err)
	}
	return ids, last, nil
}

// Remove removes finished jobs, and returns their number. It fails at once if another
// transaction has locked one of them.
func (q *Queue) Remove(ctx context.Context, on store.Querier, ids []int64) (removed int, err error) {
	if err = on.QueryRowContext(ctx, q.sql.remove, pgdriver.Array(ids)).Scan(&removed); err != nil {
		return 0, fmt.Errorf("jobs: remove old finished jobs: %w", err)
	}
	return removed, nil
}

// Forgettable returns the first expired keys of Once whose rows are not locked, at most most.
// It omits the keys in out.
func (q *Queue) Forgettable(ctx context.Context, on store.Querier, out []string, most int) (keys []string, err error) {
	given, err := list(out)
	if err == nil {
		text := strings.ReplaceAll(q.sql.forgettable, "{limit}", strconv.Itoa(pgdriver.RoundLimit(most)))
		keys, err = pgdriver.QueryAll(ctx, on, pgdriver.Value[string], text, given)
	}
	if err != nil {
		return nil, fmt.Errorf("jobs: select old keys: %w", err)
	}
	return keys, nil
}

// Forget removes those of the keys of Once that have expired and whose rows are not locked. It
// returns their number.
func (q *Queue) Forget(ctx context.Context, on store.Querier, keys []string) (removed int, err error) {
	given, err := list(keys)
	if err == nil {
		err = on.QueryRowContext(ctx, q.sql.forget, given).Scan(&removed)
	}
	if err != nil {
		return 0, fmt.Errorf("jobs: remove old keys: %w", err)
	}
	return removed, nil
}

// HasEvents reports whether the tables that Raise reads exist.
func (q *Queue) HasEvents(ctx context.Context, on store.Querier, events tables.Tables) (there bool, err error) {
	err = on.QueryRowContext(ctx, `SELECT to_regclass($1::text) IS NOT NULL AND to_regclass($2::text) IS NOT NULL AND to_regclass($3::text) IS NOT NULL`,
		events.Checkpoints.SQL(), events.GapSkips.SQL(), events.DeadLetters.SQL()).Scan(&there)
	if err != nil {
		return false, fmt.Errorf("jobs: find the tables of consumers: %w", err)
	}
	return there, nil
}

// Orphans returns emitters whose keys no worker removes. They have no checkpoint in the tables
// events, or these tables do not exist.
func (q *Queue) Orphans(ctx context.Context, on store.Querier, events tables.Tables) (emitters []string, err error) {
	there, err := q.HasEvents(ctx, on, events)
	if err != nil {
		return nil, err
	}
	known := &events
	if !there {
		known = nil
	}
	emitters, err = pgdriver.QueryAll(ctx, on, pgdriver.Value[string], orphansSQL(q.tables, known))
	if err != nil {
		return nil, fmt.Errorf("jobs: select keys of events that no worker removes: %w", err)
	}
	return emitters, nil
}

// Raise removes the records of [Queue.Emit] that no consumer can need again, according to the
// progress in the tables events. One call handles the records of some thousand events. Raise
// returns the number of removed records.
func (q *Queue) Raise(ctx context.Context, on store.Querier, events tables.Tables) (removed int64, err error) {
	result, err := on.ExecContext(ctx, raiseSQL(q.tables, events))
	if err == nil {
		removed, err = result.RowsAffected()
	}
	if err != nil {
		return 0, fmt.Errorf("jobs: remove records of settled events: %w", err)
	}
	return removed, nil
}
