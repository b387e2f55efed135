package ops

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

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
	*jobsCore
	queueOps
	jobOps
	bulkOps
	scheduleOps
	flowOps
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
	return jobsCore{core: core{
		db: pgdriver.NewPool(db), changes: t.Changes,
		missing: fmt.Sprintf("give NewJobs the names of the workers, with WithNames (the table of jobs is %s), or call migrations.ApplyJobs", t.Jobs),
		insert: `
INSERT INTO ` + t.Operations.SQL() + ` (job_id, queue, operation, detail, operator, reason, created_at)
VALUES (nullif($5::bigint, 0), nullif($6::text, ''), $1::text, $2::jsonb, $3::text, $4::text, clock_timestamp())
RETURNING id, detail::text, created_at`,
		object:  func(on Operation) []any { return []any{on.Job, on.Queue} },
		what:    " of jobs",
		workers: t.Workers, stopped: t.Stopped, draining: `false`, serials: serial.Jobs(t),
	}, t: t, sql: newJobsStatements(t), queue: queue.New(t), flows: flows}.under(nil), nil
}

// under returns a Jobs whose changes are made as dry tells. If dry is nil, they are committed.
func (c jobsCore) under(dry *dryRun) *Jobs {
	c.dry = dry
	return &Jobs{&c, queueOps{&c}, jobOps{&c}, bulkOps{&c}, scheduleOps{&c}, flowOps{&c}}
}

// Preview is an exact dry run, as [Operator.Preview] is. If the change creates a job, Preview
// returns the ID of a job that was rolled back. The change itself creates a job with another ID.
func (o *Jobs) Preview(change func(o *Jobs) error) ([]Operation, error) {
	p := o.under(&dryRun{})
	err := change(p)
	return orZero(p.dry.recorded, err)
}

// Confirmed runs a change, and commits it if accept returns nil, as [Operator.Confirmed] does.
// A retry creates a job with another ID than Preview has shown.
func (o *Jobs) Confirmed(change func(o *Jobs) error, accept func(recorded []Operation) error) error {
	return change(o.under(&dryRun{accept: accept}))
}

// Workers lists the registered workers of jobs in order of their heartbeats, the latest first.
// [Operator.Workers] says when the row of a dead worker is removed. The fields about consumers
// are empty. Able has the kinds of jobs.
func (o *Jobs) Workers(ctx context.Context) ([]Worker, error) {
	return read(ctx, &o.core, "list the workers of jobs", nil, pgdriver.Columns(func(w *Worker) []any { return append(w.columns(), pgdriver.JSON(&w.Able)) }), o.sql.workers)
}

// Operations lists operations on jobs and queues, the newest first. limit is 1 to 10,000.
func (o *Jobs) Operations(ctx context.Context, f OperationFilter, limit int) ([]Operation, error) {
	invalid := checkLimit(limit, maxJobs)
	if f.Consumer != "" {
		invalid = errtext.Join(invalid, fmt.Errorf("%w: operations on jobs have no consumer: Operator lists those that have", ErrInvalid))
	}
	if f.Queue != "" {
		invalid = errtext.Join(invalid, checkQueue(f.Queue))
	}
	query, args := o.operationsSQL(f, limit)
	return read(ctx, &o.core, "list the operations", invalid, pgdriver.Columns(func(o *Operation) []any {
		return []any{&o.ID, &o.Job, &o.Queue, &o.Kind, pgdriver.RawJSON(&o.Detail), &o.By.Operator, &o.By.Reason, pgdriver.UTC(&o.At)}
	}), query, args...)
}

// operationsSQL reads the operations on a job, and the operation that created the job, each
// through its own index.
func (o *Jobs) operationsSQL(f OperationFilter, limit int) (query string, args []any) {
	var p pgdriver.Parameters
	where := `id < ` + p.Add("bigint", cmp.Or(f.Before, 1<<63-1)) + pgdriver.And(&p, `queue = %s`, "text", f.Queue)
	which := []string{where}
	if f.Job != 0 {
		job := p.Add("bigint", f.Job)
		which = []string{where + ` AND job_id = ` + job, where + ` AND (detail->>'new_job')::bigint = ` + job}
	}
	most := p.Add("bigint", limit)
	for i, where := range which {
		which[i] = `(SELECT * FROM ` + o.t.Operations.SQL() + ` WHERE ` + where + ` ORDER BY id DESC LIMIT ` + most + `)`
	}
	return `
SELECT id, coalesce(job_id, 0), coalesce(queue, ''), operation, coalesce(detail, '{}')::text, operator, reason, ` + pgdriver.Time(`created_at`) + `
FROM (` + strings.Join(which, ` UNION ALL `) + `) AS o ORDER BY id DESC LIMIT ` + most, p.Values
}
