package queue

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// Lane is a priority of a queue, and where a claim begins to look: behind a job, and
// behind a moment if that is later.
type Lane struct {
	Priority int        `json:"p"`
	At       *time.Time `json:"at,omitempty"`  // of a job; nil: from the first, or of one that is due since '-infinity'
	ID       int64      `json:"id"`            // of it
	Ago      *int64     `json:"ago,omitempty"` // microseconds since the moment; nil: there is none
}

// Demand is what a claim asks for.
type Demand struct {
	Worker uuid.UUID
	Claim  int64 // random
	Queue  string
	Lanes  []Lane   // in the order to try
	Kinds  []string // that the worker has handlers for
	Limit  int      // jobs at most
	Start  int      // of them these, the first ones, start now

	Caps      Caps   // that the transaction has locked, see [Queue.Room]
	Condition string // on the columns of the table, with parameters from $8
	Args      []any  // of the condition
}

// Caps are those that bind a queue: its own, and that of all queues together.
type Caps struct{ Own, All bool }

// Job is a job that a worker has claimed.
type Job struct {
	Run
	Kind     string
	Priority int
	RunAt    time.Time // zero: never, it is infinity
	Args     json.RawMessage
	Meta     json.RawMessage // nil: none
	Attempt  int             // from 1
	Failures int             // so far
	Resets   int             // workers lost while it ran
	Most     int             // failures after which it has failed; 0: as its handler says
	Started  bool
	Cancel   bool // somebody wants it to end
	Bounded  bool // it has a GoodUntil
}

// Claim takes jobs that are due. A worker without a row in the table of workers
// gets none, and nobody gets one of a queue that is paused, nor of one that has a cap other than
// the Caps that the transaction has locked. Jobs that others hold are passed over.
func (q *Queue) Claim(ctx context.Context, on store.Querier, d Demand) ([]Job, error) {
	lanes, err := list(d.Lanes)
	if err != nil {
		return nil, fmt.Errorf("jobs: claim: %w", err)
	}
	kinds, err := list(d.Kinds)
	if err != nil {
		return nil, fmt.Errorf("jobs: claim: %w", err)
	}
	statement := strings.ReplaceAll(q.sql.claim[d.Caps], "{limit}", strconv.Itoa(d.Limit))
	condition := ""
	if d.Condition != "" {
		condition = " AND (" + d.Condition + ")"
	}
	statement = strings.Replace(statement, "{condition}", condition, 1)
	args := append([]any{d.Worker.String(), d.Claim, d.Queue, lanes, kinds, d.Limit, d.Start}, d.Args...)
	jobs, err := pgdriver.QueryAll(ctx, on, scanJob, statement, args...)
	if err != nil {
		return nil, fmt.Errorf("jobs: claim jobs of queue %q: %w", d.Queue, err)
	}
	return jobs, nil
}

// Look returns the jobs of a queue that run for a worker, as the database has it:
// also those of a claim whose answer was lost.
func (q *Queue) Look(ctx context.Context, on store.Querier, worker uuid.UUID, queue string) ([]Job, error) {
	jobs, err := pgdriver.QueryAll(ctx, on, scanJob, q.sql.look, worker.String(), queue)
	if err != nil {
		return nil, fmt.Errorf("jobs: look at the jobs of queue %q: %w", queue, err)
	}
	return jobs, nil
}

func scanJob(r *sql.Rows) (j Job, err error) {
	var args, meta []byte
	var due sql.NullTime
	err = r.Scan(&j.ID, &j.Claim, &j.Kind, &j.Priority, &due, &args, &meta, &j.Attempt, &j.Failures, &j.Resets, &j.Most, &j.Started, &j.Cancel, &j.Bounded)
	j.RunAt, j.Args, j.Meta = due.Time.UTC(), args, meta
	return j, err
}

// Start starts jobs that were claimed ahead, and returns those that may run. One
// that was cancelled, or whose time is over, may not, nor one that was lost or whose row
// is locked.
func (q *Queue) Start(ctx context.Context, on store.Querier, runs []Run) (started []int64, err error) {
	started, err = q.ids(ctx, on, q.sql.start, runs)
	if err != nil {
		return nil, fmt.Errorf("jobs: start: %w", err)
	}
	return started, nil
}

// Late returns those of some jobs whose time is over.
func (q *Queue) Late(ctx context.Context, on store.Querier, ids []int64) (late []int64, err error) {
	late, err = pgdriver.QueryAll(ctx, on, scanID, q.sql.late, pgdriver.Array(ids))
	if err != nil {
		return nil, fmt.Errorf("jobs: look whether jobs are late: %w", err)
	}
	return late, nil
}

// Peek is what an idle worker finds.
type Peek struct {
	Due    time.Duration // until the first job is due, negative if it is already
	None   bool          // there is none up to the time that was asked for
	Capped bool          // the queue, or all together, has a cap
	Paused bool
}

// Peek looks what there is to do in lanes of a queue for a worker with these kinds, up to
// the given time from now.
func (q *Queue) Peek(ctx context.Context, on store.Querier, queue string, all []Lane, kinds []string, ahead time.Duration) (p Peek, err error) {
	lanes, err := list(all)
	if err != nil {
		return p, fmt.Errorf("jobs: peek: %w", err)
	}
	given, err := list(kinds)
	if err != nil {
		return p, fmt.Errorf("jobs: peek: %w", err)
	}
	var due sql.NullInt64
	if err = on.QueryRowContext(ctx, q.sql.peek, queue, lanes, given, ahead.Microseconds()).Scan(&due, &p.Capped, &p.Paused); err != nil {
		return p, fmt.Errorf("jobs: look what is due in queue %q: %w", queue, err)
	}
	p.Due, p.None = time.Duration(due.Int64)*time.Microsecond, !due.Valid
	return p, nil
}

// Room locks the caps of a queue and of all queues until the end of tx, and
// returns how many jobs may be claimed up to then, limit at most, and which caps it has
// locked. Jobs are counted in a later statement than the one that locks: that one's snapshot
// may be older than what the last owner of the lock has claimed.
func (q *Queue) Room(ctx context.Context, tx store.Querier, queue string, limit int) (room int, locked Caps, err error) {
	type limitOf struct {
		queue string
		most  int64
	}
	caps, err := pgdriver.QueryAll(ctx, tx, func(r *sql.Rows) (l limitOf, err error) {
		var idle string
		return l, r.Scan(&l.queue, &l.most, &idle)
	}, q.sql.lock, queue)
	if err != nil {
		return 0, locked, fmt.Errorf("jobs: lock the caps of queue %q: %w", queue, err)
	}
	if len(caps) == 0 {
		return limit, locked, nil
	}
	var own, all sql.NullInt64
	for _, l := range caps {
		if l.queue == queue {
			own = sql.NullInt64{Int64: l.most, Valid: true}
		} else {
			all = sql.NullInt64{Int64: l.most, Valid: true}
		}
	}
	var n int64
	if err := tx.QueryRowContext(ctx, q.sql.room, queue, own, all).Scan(&n); err != nil {
		return 0, locked, fmt.Errorf("jobs: count what runs of queue %q: %w", queue, err)
	}
	return int(min(n, int64(limit))), Caps{Own: own.Valid, All: all.Valid}, nil
}

// Want makes those who enqueue tell of new jobs of a queue for the next half
// minute.
func (q *Queue) Want(ctx context.Context, on store.Querier, queue string) error {
	if _, err := on.ExecContext(ctx, q.sql.want, queue); err != nil {
		return fmt.Errorf("jobs: ask to be told of new jobs of queue %q: %w", queue, err)
	}
	return nil
}
