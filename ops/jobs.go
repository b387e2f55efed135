package ops

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/migrations"
)

// Jobs works on the jobs and queues of one set of tables. It is safe for concurrent use.
type Jobs struct {
	db    pgdriver.Pool
	t     tables.Jobs
	sql   jobsStatements
	queue *queue.Queue
	flows *flow.Client
	dry   *dryRun // nil: changes are made
}

// NewJobs returns a Jobs. NewJobs does not access the database.
func NewJobs(db *sql.DB, opts ...Option) (*Jobs, error) {
	if db == nil {
		return nil, errors.New("ops: db is nil: open the database of the jobs with sql.Open")
	}
	names := configured(opts)
	t, err := tables.ParseJobs(names)
	if err != nil {
		return nil, fmt.Errorf("ops: WithNames: %w", err)
	}
	flows := flow.NewClient(jobs.NewClient(db, jobs.WithNames(names)))
	return &Jobs{db: pgdriver.NewPool(db), t: t, sql: newJobsStatements(t), queue: queue.New(t), flows: flows}, nil
}

// JobState is the state of a job. The states from JobCompleted on are final.
type JobState string

const (
	JobAvailable JobState = "available" // runs as soon as it is due
	JobRunning   JobState = "running"   // claimed by a worker

	JobCompleted JobState = "completed"
	JobFailed    JobState = "failed"
	JobCancelled JobState = "cancelled"
	JobExpired   JobState = "expired" // no worker claimed it in time
	JobSkipped   JobState = "skipped" // a job that it waited for did not end well
)

var (
	unfinishedStates = []JobState{JobAvailable, JobRunning}
	finishedStates   = []JobState{JobCompleted, JobFailed, JobCancelled, JobExpired, JobSkipped}
	// unsuccessfulStates are the states of jobs that Retry accepts.
	unsuccessfulStates = []JobState{JobFailed, JobCancelled, JobExpired, JobSkipped}
)

// AllQueues stands for all queues together. PauseQueue, SetCap and SetRetention accept it.
const AllQueues = "*"

var (
	// ErrNoJob reports that no unfinished or finished job has the ID.
	ErrNoJob = errors.New("there is no such job: List lists the jobs; a finished job is deleted when its retention is over")

	// ErrUnchanged reports that a setting already has the value.
	ErrUnchanged = errors.New("it is set so already")

	// ErrRetried refuses the Retry of a job that was retried before.
	ErrRetried = errors.New("it was retried before")
)

// JobStateError refuses an operation on a job in state State.
type JobStateError struct {
	State JobState
	why   string
}

func (e *JobStateError) Error() string { return fmt.Sprintf("it is %s: %s", e.State, e.why) }

// target names the object of an operation.
type target struct {
	job      int64  // 0: none
	queue    string // empty: none
	schedule string // empty: none
	run      int64  // of a flow; 0: none
}

func (a target) String() string {
	switch {
	case a.job != 0:
		return fmt.Sprintf("job %d", a.job)
	case a.run != 0:
		return fmt.Sprintf("run %d", a.run)
	case a.schedule != "":
		return "schedule " + errtext.Value(a.schedule)
	case a.queue == AllQueues:
		return "all queues"
	case a.queue != "":
		return "queue " + errtext.Value(a.queue)
	}
	return "jobs"
}

// change runs one operation, as [Operator.change] does for a consumer. do may complete the target.
func (o *Jobs) change(ctx context.Context, kind Kind, a *target, by By, invalid error, do func(tx *sql.Tx) (detail any, err error)) error {
	err := errtext.Join(invalid, by.check())
	if err == nil {
		err = audited(ctx, o.db, o.t.Changes, o.dry, func(tx *sql.Tx) (int64, error) {
			if _, err := exec(ctx, tx, "limit the transaction", `SELECT set_config('idle_in_transaction_session_timeout', $1::text, true), set_config('lock_timeout', '0', true), set_config('statement_timeout', '0', true)`, idleLimit); err != nil {
				return 0, err
			}
			detail, err := do(tx)
			if err != nil {
				return 0, err
			}
			return o.record(ctx, tx, kind, *a, by, detail)
		})
	}
	if err != nil {
		return errtext.Of(fmt.Errorf("ops: %s of %s: %w", kind, *a, o.explain(err)))
	}
	return nil
}

// record inserts an operation.
func (o *Jobs) record(ctx context.Context, tx *sql.Tx, kind Kind, a target, by By, detail any) (id int64, err error) {
	text, err := json.Marshal(detail)
	if err != nil {
		return 0, err
	}
	var kept string
	var at time.Time
	err = tx.QueryRowContext(ctx, `
INSERT INTO `+o.t.Operations.SQL()+` (job_id, queue, operation, detail, operator, reason, created_at)
VALUES (nullif($1::bigint, 0), nullif($2::text, ''), $3::text, $4::jsonb, $5::text, $6::text, clock_timestamp())
RETURNING id, detail::text, created_at`, a.job, a.queue, string(kind), string(text), by.Operator, by.Reason).Scan(&id, &kept, &at)
	if err != nil {
		return 0, fmt.Errorf("record the operation: %w", err)
	}
	if o.dry != nil {
		o.dry.add(Operation{Job: a.job, Queue: a.queue, Kind: kind, Detail: json.RawMessage(kept), By: by, At: at.UTC()})
	}
	return id, nil
}

// explain adds the remedy to an error about missing tables.
func (o *Jobs) explain(err error) error {
	if pgdriver.IsUndefined(err) {
		return fmt.Errorf("%w: give NewJobs the names of the workers, with WithNames (the table of jobs is %s), or call migrations.ApplyJobs: %w", migrations.ErrNotApplied, o.t.Jobs, err)
	}
	return err
}

// lockError names the holder of a row if the context ended the wait for the row.
func lockError(ctx context.Context, what, holder string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("gave up waiting for %s, which %s: allow more time: %w", what, holder, err)
	}
	return fmt.Errorf("lock %s: %w", what, err)
}

const maxQueueName = 1_000 // bytes; the index takes little more

// checkQueue checks the name of a queue.
func checkQueue(name string) error { return checkText("the queue's name", name, maxQueueName) }

func checkJob(id int64) error {
	if id < 1 {
		return fmt.Errorf("%w: the job's ID is %d, they begin at 1", ErrInvalid, id)
	}
	return nil
}
