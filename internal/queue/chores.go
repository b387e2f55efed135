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

// Lost returns the first running jobs of workers that are dead, most at most, without
// those of out. with is the begin of a statement, up to a CTE "dead" with their worker_id,
// and args are its arguments.
func (q *Queue) Lost(ctx context.Context, on store.Querier, out []int64, most int, with string, args ...any) (ids []int64, err error) {
	text, args := listed(with+q.sql.lost, most, args, out)
	ids, err = pgdriver.QueryAll(ctx, on, scanID, text, args...)
	if err != nil {
		return nil, fmt.Errorf("jobs: look for jobs of dead workers: %w", err)
	}
	return ids, nil
}

// Reset takes those of some jobs that [Queue.Lost] would find: who is dead is judged in the
// statement that takes the jobs. Jobs that had started and were reset too often fail. It
// returns how many run again, and how many have ended.
func (q *Queue) Reset(ctx context.Context, on store.Querier, ids []int64, with string, args ...any) (back, ended int, err error) {
	text, args := listed(with+q.sql.reset, 0, args, ids)
	err = on.QueryRowContext(ctx, text, args...).Scan(&back, &ended)
	if err != nil {
		return 0, 0, fmt.Errorf("jobs: reset the jobs of dead workers: %w", err)
	}
	return back, ended, nil
}

// listed puts a limit into a statement, and a list of ids behind its other arguments.
func listed(text string, most int, args []any, ids []int64) (string, []any) {
	args = append(slices.Clone(args), pgdriver.Array(ids))
	return strings.NewReplacer("{limit}", strconv.Itoa(pgdriver.RoundLimit(most)), "{ids}", "$"+strconv.Itoa(len(args))).Replace(text), args
}

// Expirable returns the first jobs that nobody has claimed in time, most at most, without
// those of out.
func (q *Queue) Expirable(ctx context.Context, on store.Querier, out []int64, most int) (ids []int64, err error) {
	text, args := listed(q.sql.expirable, most, nil, out)
	ids, err = pgdriver.QueryAll(ctx, on, scanID, text, args...)
	if err != nil {
		return nil, fmt.Errorf("jobs: look for jobs that expire: %w", err)
	}
	return ids, nil
}

// Expire ends those of some jobs that nobody has claimed in time, and returns their ids.
func (q *Queue) Expire(ctx context.Context, on store.Querier, ids []int64) (expired []int64, err error) {
	expired, err = pgdriver.QueryAll(ctx, on, scanID, q.sql.expire, pgdriver.Array(ids))
	if err != nil {
		return nil, fmt.Errorf("jobs: expire: %w", err)
	}
	return expired, nil
}

// Claimers returns the workers that jobs run for and that have no row.
func (q *Queue) Claimers(ctx context.Context, on store.Querier) ([]uuid.UUID, error) {
	ids, err := pgdriver.QueryAll(ctx, on, func(r *sql.Rows) (id uuid.UUID, err error) { return id, r.Scan(&id) }, q.sql.claimers)
	if err != nil {
		return nil, fmt.Errorf("jobs: look for jobs of workers that are gone: %w", err)
	}
	return ids, nil
}

// Unknown returns some kinds of jobs that are due in a queue and not in kinds.
func (q *Queue) Unknown(ctx context.Context, on store.Querier, queue string, kinds []string) (unknown []string, err error) {
	given, err := list(kinds)
	if err == nil {
		unknown, err = pgdriver.QueryAll(ctx, on, func(r *sql.Rows) (kind string, err error) { return kind, r.Scan(&kind) }, q.sql.unknown, queue, given)
	}
	if err != nil {
		return nil, fmt.Errorf("jobs: look for unknown kinds in queue %q: %w", queue, err)
	}
	return unknown, nil
}

// Unserved returns queues with jobs that are due, and that no worker claims from.
func (q *Queue) Unserved(ctx context.Context, on store.Querier) (queues []string, err error) {
	queues, err = pgdriver.QueryAll(ctx, on, func(r *sql.Rows) (name string, err error) { return name, r.Scan(&name) }, q.sql.unserved)
	if err != nil {
		return nil, fmt.Errorf("jobs: look for queues without a worker: %w", err)
	}
	return queues, nil
}

// Unadvanced reports whether runs of flows have not ended, and no worker advances them. A role
// that may not read their tables is told that it is not so.
func (q *Queue) Unadvanced(ctx context.Context, on store.Querier) (unadvanced bool, err error) {
	err = on.QueryRowContext(ctx, flowsSQL, q.tables.FlowRuns.SQL(), q.tables.FlowSweep.SQL()).Scan(&unadvanced)
	if err == nil && unadvanced {
		err = on.QueryRowContext(ctx, q.sql.unadvanced).Scan(&unadvanced)
	}
	if err != nil {
		return false, fmt.Errorf("jobs: look for flows that nobody advances: %w", err)
	}
	return unadvanced, nil
}

// Retained returns the queues that have finished jobs.
func (q *Queue) Retained(ctx context.Context, on store.Querier) (queues []string, err error) {
	queues, err = pgdriver.QueryAll(ctx, on, func(r *sql.Rows) (name string, err error) { return name, r.Scan(&name) }, q.sql.retained)
	if err != nil {
		return nil, fmt.Errorf("jobs: look for queues with finished jobs: %w", err)
	}
	return queues, nil
}

// Finished is the place of a finished job in the order in which jobs are removed. The zero
// Finished is before the first.
type Finished struct {
	At time.Time
	ID int64
}

// Retainable returns the first jobs behind a place that finished in a queue longer ago than
// the queue keeps them, or else than keep, without those of out, and the place of the last
// one. keep 0 is for ever. most bounds the jobs. What is committed late may lie before
// the place.
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
		return nil, after, fmt.Errorf("jobs: look for old finished jobs of queue %q: %w", queue, err)
	}
	return ids, last, nil
}

// Remove removes finished jobs, and returns how many. It fails at once if somebody has locked
// one of them.
func (q *Queue) Remove(ctx context.Context, on store.Querier, ids []int64) (removed int, err error) {
	if err = on.QueryRowContext(ctx, q.sql.remove, pgdriver.Array(ids)).Scan(&removed); err != nil {
		return 0, fmt.Errorf("jobs: remove old finished jobs: %w", err)
	}
	return removed, nil
}

// Forgettable returns the first keys of Once whose time is over and that nobody has locked,
// most at most, without those of out.
func (q *Queue) Forgettable(ctx context.Context, on store.Querier, out []string, most int) (keys []string, err error) {
	given, err := list(out)
	if err == nil {
		text := strings.ReplaceAll(q.sql.forgettable, "{limit}", strconv.Itoa(pgdriver.RoundLimit(most)))
		keys, err = pgdriver.QueryAll(ctx, on, func(r *sql.Rows) (key string, err error) { return key, r.Scan(&key) }, text, given)
	}
	if err != nil {
		return nil, fmt.Errorf("jobs: look for old keys: %w", err)
	}
	return keys, nil
}

// Forget removes those of some keys of Once whose time is over and that nobody has locked,
// and returns how many.
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

// HasEvents reports whether the tables that Raise reads are there.
func (q *Queue) HasEvents(ctx context.Context, on store.Querier, events tables.Tables) (there bool, err error) {
	err = on.QueryRowContext(ctx, `SELECT to_regclass($1::text) IS NOT NULL AND to_regclass($2::text) IS NOT NULL AND to_regclass($3::text) IS NOT NULL`,
		events.Checkpoints.SQL(), events.GapSkips.SQL(), events.DeadLetters.SQL()).Scan(&there)
	if err != nil {
		return false, fmt.Errorf("jobs: look for the tables of consumers: %w", err)
	}
	return there, nil
}

// Orphans returns emitters whose keys no worker removes: they have no checkpoint in the tables
// events, or there are no such tables.
func (q *Queue) Orphans(ctx context.Context, on store.Querier, events tables.Tables) (emitters []string, err error) {
	there, err := q.HasEvents(ctx, on, events)
	if err != nil {
		return nil, err
	}
	known := &events
	if !there {
		known = nil
	}
	emitters, err = pgdriver.QueryAll(ctx, on, func(r *sql.Rows) (name string, err error) { return name, r.Scan(&name) }, orphansSQL(q.tables, known))
	if err != nil {
		return nil, fmt.Errorf("jobs: look for keys of events that no worker removes: %w", err)
	}
	return emitters, nil
}

// Raise removes the notes of [Queue.Emit] that no consumer can need again, as the
// progress in the tables events shows: those of some thousand events. It returns how many.
func (q *Queue) Raise(ctx context.Context, on store.Querier, events tables.Tables) (removed int64, err error) {
	result, err := on.ExecContext(ctx, raiseSQL(q.tables, events))
	if err == nil {
		removed, err = result.RowsAffected()
	}
	if err != nil {
		return 0, fmt.Errorf("jobs: remove notes of events that are settled: %w", err)
	}
	return removed, nil
}
