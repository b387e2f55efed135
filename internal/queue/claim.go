package queue

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// Lane is a priority of a queue, and the position from which a claim reads. The position is
// after a job, or after a later moment.
type Lane struct {
	Priority int        `json:"p"`
	At       *time.Time `json:"at,omitempty"`  // of a job; nil: from the first, or from a job that is due since '-infinity'
	ID       int64      `json:"id"`            // of the job
	Ago      *int64     `json:"ago,omitempty"` // microseconds since the moment; nil: no moment
}

// Demand is the request of a claim.
type Demand struct {
	Worker uuid.UUID
	Claim  int64 // random
	Queue  string
	Lanes  []Lane   // in the order to try
	Kinds  []string // for which the worker has handlers
	Limit  int      // maximum number of jobs
	Start  int      // number of jobs that start now, the first ones

	Caps      Caps   // that the transaction has locked, see [Queue.Room]
	Condition string // on the columns of the table; its parameters begin at $8
	Args      []any  // of the condition
}

// Caps are the caps that apply to a queue: its own cap, and the cap of all queues together.
type Caps struct{ Own, All bool }

// Job is a job that a worker has claimed.
type Job struct {
	Run
	Kind     string
	Priority int
	RunAt    time.Time // zero: infinity, so never due
	Args     json.RawMessage
	Meta     json.RawMessage // nil: none
	Attempt  int             // from 1
	Failures int             // number of failures
	Resets   int             // number of workers that died while they ran it
	Most     int             // failures after which it has failed; 0: its handler decides
	Started  bool
	Cancel   bool // a program or an operator asked its run to end
	Bounded  bool // it has a GoodUntil
}

// Claimer claims jobs, starts prefetched jobs, and reads what waits.
type Claimer struct{ sql claimSQL }

type claimSQL struct {
	claim                                              map[Caps]string // by the locked caps
	inFlight, start, late, lock, room, peek, due, want string
}

// Claim claims due jobs. It skips jobs that other transactions have locked. A worker without a
// row in the table of workers claims none. A paused queue yields none. A queue with a cap
// yields none unless the transaction has locked the cap, according to d.Caps.
func (q *Claimer) Claim(ctx context.Context, on store.Querier, d Demand) ([]Job, error) {
	statement, args, err := d.statement(q.sql.claim[d.Caps])
	if err != nil {
		return nil, err
	}
	return read(ctx, on, fmt.Sprintf("claim jobs of queue %q", d.Queue), scanJob, statement, args...)
}

// Due returns the jobs that a claim would take if it were sent now, also locked ones.
func (q *Claimer) Due(ctx context.Context, on store.Querier, d Demand) ([]int64, error) {
	statement, args, err := d.statement(q.sql.due)
	if err != nil {
		return nil, err
	}
	return read(ctx, on, fmt.Sprintf("read the due jobs of queue %q", d.Queue), scanID, statement, args...)
}

// statement returns the statement of a demand, and its arguments.
func (d *Demand) statement(text string) (statement string, args []any, err error) {
	lanes, err := list(d.Lanes)
	if err != nil {
		return "", nil, fmt.Errorf("jobs: claim: %w", err)
	}
	condition := ""
	if d.Condition != "" {
		condition = " AND (" + d.Condition + ")"
	}
	statement = strings.Replace(strings.ReplaceAll(text, "{limit}", strconv.Itoa(d.Limit)), "{condition}", condition, 1)
	return statement, append([]any{d.Worker.String(), d.Claim, d.Queue, lanes, names(d.Kinds), d.Limit, d.Start}, d.Args...), nil
}

// conditionOffset is how many parameters a claim has before the parameters of a condition.
const conditionOffset = 7

// Given returns the condition of a caller with its parameters moved behind those of a claim.
func Given(condition string) string { return pgdriver.ShiftParameters(condition, conditionOffset) }

// But returns the demand without jobs.
func (d Demand) But(ids []int64) Demand { return d.and(`id <> ALL ($%d::bigint[])`, ids) }

// Only returns the demand for jobs, of which it starts up to start.
func (d Demand) Only(ids []int64, start int) Demand {
	d.Limit, d.Start = len(ids), min(len(ids), start)
	return d.and(`id = ANY ($%d::bigint[])`, ids)
}

func (d Demand) and(condition string, ids []int64) Demand {
	d.Args = append(slices.Clone(d.Args), pgdriver.Array(ids))
	if d.Condition != "" {
		d.Condition = "(" + d.Condition + ") AND "
	}
	d.Condition += fmt.Sprintf(condition, conditionOffset+len(d.Args))
	return d
}

// InFlight returns the jobs of a queue that run for a worker according to the database. They
// include the jobs of a claim whose answer was lost.
func (q *Claimer) InFlight(ctx context.Context, on store.Querier, worker uuid.UUID, queue string) ([]Job, error) {
	return read(ctx, on, fmt.Sprintf("read the jobs in flight of queue %q", queue), scanJob, q.sql.inFlight, worker.String(), queue)
}

var scanJob = pgdriver.Columns(func(j *Job) []any {
	return []any{&j.ID, &j.Claim, &j.Kind, &j.Priority, pgdriver.UTC(&j.RunAt), pgdriver.RawJSON(&j.Args), pgdriver.RawJSON(&j.Meta), &j.Attempt, &j.Failures, &j.Resets, &j.Most, &j.Started, &j.Cancel, &j.Bounded}
})

// Start starts prefetched jobs, and returns the jobs that may run. It does not start jobs that
// were cancelled, have expired, were lost, or are locked.
func (q *Claimer) Start(ctx context.Context, on store.Querier, runs []Run) (started []int64, err error) {
	ids, claims := Arrays(runs)
	return read(ctx, on, "start", scanID, q.sql.start, ids, claims)
}

// Late returns the jobs that are past their GoodUntil.
func (q *Claimer) Late(ctx context.Context, on store.Querier, ids []int64) (late []int64, err error) {
	return read(ctx, on, "select late jobs", scanID, q.sql.late, pgdriver.Array(ids))
}

// Peek is the state of a queue for an idle worker.
type Peek struct {
	Due    time.Duration // until the first job is due; negative if it is already due
	None   bool          // no job is due up to the time asked for
	Capped bool          // the queue, or all queues together, has a cap
	Paused bool
}

// Peek reads when the next job is due in lanes of a queue, for a worker with these kinds. It
// reads no later than ahead from now.
func (q *Claimer) Peek(ctx context.Context, on store.Querier, queue string, all []Lane, kinds []string, ahead time.Duration) (p Peek, err error) {
	lanes, err := list(all)
	if err != nil {
		return p, fmt.Errorf("jobs: peek: %w", err)
	}
	var due sql.NullInt64
	if err = on.QueryRowContext(ctx, q.sql.peek, queue, lanes, names(kinds), ahead.Microseconds()).Scan(&due, &p.Capped, &p.Paused); err != nil {
		return p, fmt.Errorf("jobs: read what is due in queue %q: %w", queue, err)
	}
	p.Due, p.None = time.Duration(due.Int64)*time.Microsecond, !due.Valid
	return p, nil
}

// Room locks the caps of a queue and of all queues until the end of tx. It returns how many jobs the
// caps still permit, at most limit, and which caps it has locked. The count follows in a separate
// statement, since the snapshot of the lock may be older than the last holder's claims.
func (q *Claimer) Room(ctx context.Context, tx store.Querier, queue string, limit int) (room int, locked Caps, err error) {
	type limitOf struct {
		queue, idle string
		most        int64
	}
	caps, err := read(ctx, tx, fmt.Sprintf("lock the caps of queue %q", queue), pgdriver.Columns(func(l *limitOf) []any { return []any{&l.queue, &l.most, &l.idle} }), q.sql.lock, queue)
	if err != nil {
		return 0, locked, err
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
	if err := readRow(ctx, tx, fmt.Sprintf("count the running jobs of queue %q", queue), q.sql.room, []any{queue, own, all}, &n); err != nil {
		return 0, locked, err
	}
	return int(min(n, int64(limit))), Caps{Own: own.Valid, All: all.Valid}, nil
}

// Want makes enqueuing transactions notify of new jobs of a queue for the next half minute.
func (q *Claimer) Want(ctx context.Context, on store.Querier, queue string) error {
	return exec(ctx, on, fmt.Sprintf("request notifications of new jobs of queue %q", queue), q.sql.want, queue)
}
