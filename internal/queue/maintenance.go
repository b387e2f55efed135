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

// Leader does the work that one worker does for all.
type Leader struct {
	tables tables.Jobs
	sql    leadSQL
}

type leadSQL struct {
	lost, reset                                                          string // both follow the CTE dead
	claimers, unknown, unserved, unadvanced                              string
	expirable, expire, retained, retainable, remove, forgettable, forget string
}

// Lost returns at most most running jobs of dead workers, the first ones, without the jobs in
// out. with is the beginning of a statement, up to a CTE "dead" with the worker_ids of the
// dead. args are its arguments.
func (q *Leader) Lost(ctx context.Context, on store.Querier, out []int64, most int, with string, args ...any) (ids []int64, err error) {
	text, args := listed(with+"\n"+q.sql.lost, most, args, out)
	return read(ctx, on, "select jobs of dead workers", scanID, text, args...)
}

// Reset resets the given jobs that [Queue.Lost] would find. The statement that resets the jobs also
// decides which workers are dead. Jobs that had started and were reset too often fail. Reset
// returns how many jobs run again, and how many have failed.
func (q *Leader) Reset(ctx context.Context, on store.Querier, ids []int64, with string, args ...any) (back, ended int, err error) {
	text, args := listed(with+q.sql.reset, 0, args, ids)
	err = readRow(ctx, on, "reset the jobs of dead workers", text, args, &back, &ended)
	return back, ended, err
}

// listed puts a limit into a statement, and appends a list of ids to its arguments.
func listed(text string, most int, args []any, ids []int64) (string, []any) {
	args = append(slices.Clone(args), pgdriver.Array(ids))
	return strings.NewReplacer("{limit}", strconv.Itoa(pgdriver.RoundLimit(most)), "{ids}", "$"+strconv.Itoa(len(args))).Replace(text), args
}

// Expirable returns at most most jobs that no worker claimed in time, the first ones, without
// the jobs in out.
func (q *Leader) Expirable(ctx context.Context, on store.Querier, out []int64, most int) (ids []int64, err error) {
	text, args := listed(q.sql.expirable, most, nil, out)
	return read(ctx, on, "select jobs that expire", scanID, text, args...)
}

// Expire ends the given jobs that no worker claimed in time, and returns their ids.
func (q *Leader) Expire(ctx context.Context, on store.Querier, ids []int64) (expired []int64, err error) {
	return read(ctx, on, "expire", scanID, q.sql.expire, pgdriver.Array(ids))
}

// Claimers returns the workers that have running jobs but no row.
func (q *Leader) Claimers(ctx context.Context, on store.Querier) ([]uuid.UUID, error) {
	return read(ctx, on, "select jobs of workers without a row", pgdriver.Value[uuid.UUID], q.sql.claimers)
}

// Unknown returns some kinds of jobs that are due in a queue and not in kinds.
func (q *Leader) Unknown(ctx context.Context, on store.Querier, queue string, kinds []string) (unknown []string, err error) {
	return read(ctx, on, fmt.Sprintf("select unknown kinds in queue %q", queue), pgdriver.Value[string], q.sql.unknown, queue, names(kinds))
}

// Unserved returns queues that have due jobs but no worker that claims from them.
func (q *Leader) Unserved(ctx context.Context, on store.Querier) (queues []string, err error) {
	return read(ctx, on, "select queues without a worker", pgdriver.Value[string], q.sql.unserved)
}

// Unadvanced reports whether some runs of flows have not ended, but no worker advances them. It
// returns false for a role that may not read their tables.
func (q *Leader) Unadvanced(ctx context.Context, on store.Querier) (unadvanced bool, err error) {
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
func (q *Leader) Retained(ctx context.Context, on store.Querier) (queues []string, err error) {
	return read(ctx, on, "select queues with finished jobs", pgdriver.Value[string], q.sql.retained)
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
func (q *Leader) Retainable(ctx context.Context, on store.Querier, queue string, keep time.Duration, after Finished, out []int64, most int) (ids []int64, last Finished, err error) {
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
func (q *Leader) Remove(ctx context.Context, on store.Querier, ids []int64) (removed int, err error) {
	err = readRow(ctx, on, "remove old finished jobs", q.sql.remove, []any{pgdriver.Array(ids)}, &removed)
	return removed, err
}

// Forgettable returns the first expired keys of Once whose rows are not locked, at most most.
// It omits the keys in out.
func (q *Leader) Forgettable(ctx context.Context, on store.Querier, out []string, most int) (keys []string, err error) {
	text := strings.ReplaceAll(q.sql.forgettable, "{limit}", strconv.Itoa(pgdriver.RoundLimit(most)))
	return read(ctx, on, "select old keys", pgdriver.Value[string], text, names(out))
}

// Forget removes the given keys of Once that have expired and whose rows are not locked. It returns
// their number.
func (q *Leader) Forget(ctx context.Context, on store.Querier, keys []string) (removed int, err error) {
	err = readRow(ctx, on, "remove old keys", q.sql.forget, []any{names(keys)}, &removed)
	return removed, err
}

// HasEvents reports whether the tables that Raise reads exist.
func (q *Leader) HasEvents(ctx context.Context, on store.Querier, events tables.Tables) (there bool, err error) {
	err = readRow(ctx, on, "find the tables of consumers", `SELECT to_regclass($1::text) IS NOT NULL AND to_regclass($2::text) IS NOT NULL AND to_regclass($3::text) IS NOT NULL`,
		[]any{events.Checkpoints.SQL(), events.GapSkips.SQL(), events.DeadLetters.SQL()}, &there)
	return there, err
}

// Orphans returns emitters whose keys no worker removes. They have no checkpoint in the tables
// events, or these tables do not exist.
func (q *Leader) Orphans(ctx context.Context, on store.Querier, events tables.Tables) (emitters []string, err error) {
	there, err := q.HasEvents(ctx, on, events)
	if err != nil {
		return nil, err
	}
	known := &events
	if !there {
		known = nil
	}
	return read(ctx, on, "select keys of events that no worker removes", pgdriver.Value[string], orphansSQL(q.tables, known))
}

// Raise removes the records of [Queue.Emit] that no consumer can need again, according to the
// progress in the tables events. One call handles the records of some thousand events. Raise
// returns the number of removed records.
func (q *Leader) Raise(ctx context.Context, on store.Querier, events tables.Tables) (removed int64, err error) {
	result, err := on.ExecContext(ctx, raiseSQL(q.tables, events))
	if err == nil {
		removed, err = result.RowsAffected()
	}
	if err != nil {
		return 0, fmt.Errorf("jobs: remove records of settled events: %w", err)
	}
	return removed, nil
}
