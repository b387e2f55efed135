package ops

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/serial"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
)

// Jobs works on the jobs and queues of one set of tables. It is safe for concurrent use.
type Jobs struct {
	core
	t     tables.Jobs
	sql   jobsStatements
	queue *queue.Queue
	flows *flow.Client
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
	return &Jobs{core: core{
		db: pgdriver.NewPool(db), changes: t.Changes,
		missing: fmt.Sprintf("give NewJobs the names of the workers, with WithNames (the table of jobs is %s), or call migrations.ApplyJobs", t.Jobs),
		insert: `
INSERT INTO ` + t.Operations.SQL() + ` (job_id, queue, operation, detail, operator, reason, created_at)
VALUES (nullif($5::bigint, 0), nullif($6::text, ''), $1::text, $2::jsonb, $3::text, $4::text, clock_timestamp())
RETURNING id, detail::text, created_at`,
		object:  func(on Operation) []any { return []any{on.Job, on.Queue} },
		what:    " of jobs",
		workers: t.Workers, stopped: t.Stopped, draining: `false`, serials: serial.Jobs(t),
	}, t: t, sql: newJobsStatements(t), queue: queue.New(t), flows: flows}, nil
}

var (
	unfinishedStates = []jobs.State{jobs.StateAvailable, jobs.StateRunning}
	finishedStates   = []jobs.State{jobs.StateCompleted, jobs.StateFailed, jobs.StateCancelled, jobs.StateExpired, jobs.StateSkipped}
	// unsuccessfulStates are the states of jobs that Retry accepts.
	unsuccessfulStates = []jobs.State{jobs.StateFailed, jobs.StateCancelled, jobs.StateExpired, jobs.StateSkipped}
)

// AllQueues stands for all queues together. PauseQueue, SetCap and SetRetention accept it.
const AllQueues = "*"

// onJob returns a change of a job. Its queue is not known yet.
func onJob(kind Kind, id int64, by By) *verb {
	return &verb{Operation{Job: id, Kind: kind, By: by}, fmt.Sprintf("job %d", id)}
}

// onQueue returns a change of a queue, or of all queues. An empty name stands for jobs of any queue.
func onQueue(kind Kind, name string, by By) *verb {
	on := "queue " + errtext.Value(name)
	switch name {
	case AllQueues:
		on = "all queues"
	case "":
		on = "jobs"
	}
	return &verb{Operation{Queue: name, Kind: kind, By: by}, on}
}

// changeJobs makes a change of jobs, as [Operator.changeUnits] does for units. do returns the detail
// of the record. It may complete v.
func (o *Jobs) changeJobs(ctx context.Context, v *verb, invalid error, do func(c jobsTx) (detail any, err error)) error {
	return o.change(ctx, v, invalid, func(tx *sql.Tx) (int64, error) {
		if err := setLimits(ctx, tx); err != nil {
			return 0, err
		}
		detail, err := do(jobsTx{tx, o.t, o.queue})
		if err != nil {
			return 0, err
		}
		return o.record(ctx, tx, v.Operation, detail)
	})
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

// checkID checks the ID of a job or of a run.
func checkID(of string, id int64) error {
	if id < 1 {
		return fmt.Errorf("%w: the %s's ID is %d, they begin at 1", ErrInvalid, of, id)
	}
	return nil
}

// Workers lists the registered workers of jobs in order of their heartbeats, the latest first.
// [Operator.Workers] says when the row of a dead worker is removed. The fields about consumers
// are empty. Able has the kinds of jobs.
func (o *Jobs) Workers(ctx context.Context) ([]Worker, error) {
	return read(ctx, &o.core, "list the workers of jobs", nil, pgdriver.Columns(func(w *Worker) []any { return append(w.columns(), pgdriver.JSON(&w.Able)) }), o.sql.workers)
}
