package metricstest

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/jobs/schedule"
	"github.com/pgfrontier/worker/jobs/table"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/ops"
)

// Task is a job whose handler does what its Outcome says.
type Task struct{ Outcome string }

// Kind is "task".
func (Task) Kind() string { return "task" }

type stranger struct{}

func (stranger) Kind() string { return "stranger" }

func (t Task) do(attempt int) error {
	switch {
	case t.Outcome == "retried" && attempt == 1:
		return jobs.RetryAfter(0, errors.New("not this time"))
	case t.Outcome == "snoozed" && attempt == 1:
		return jobs.Snooze(0)
	case t.Outcome == "failed":
		return jobs.Fail(errors.New("never"))
	case t.Outcome == "cancelled":
		return jobs.Discard(errors.New("not needed"))
	}
	return nil
}

// NewJobs makes a database with the tables of jobs.
func NewJobs(t testing.TB) *pgtest.Database {
	t.Helper()
	d := pgtest.New(t)
	if err := migrations.ApplyJobs(context.Background(), d.DB, nil); err != nil {
		t.Fatal(err)
	}
	d.DB.SetMaxIdleConns(20)
	return d
}

// StartJobs runs a worker of jobs with an adapter until the test ends, or end is called.
func StartJobs(t testing.TB, db *sql.DB, a Adapter, handlers *jobs.Handlers, options ...jobs.Option) (w *jobs.Worker, end func()) {
	t.Helper()
	o, err := ops.NewJobs(db)
	if err != nil {
		t.Fatal(err)
	}
	quick := []jobs.Option{jobs.WithPollInterval(20 * time.Millisecond), jobs.WithHeartbeatInterval(100 * time.Millisecond), jobs.WithHeartbeatTimeout(3 * time.Second)}
	w = jobs.NewWorker(db, handlers, append(append(quick, a.JobsOptions()...), options...)...)
	a.WatchJobs(w, o)
	return w, run(t, w.Start, w.Stop)
}

// Jobs has jobs on a real server do what each metric counts. What the worker sees of the depth of
// queues is old for some seconds: the jobs that wait are there before the worker.
func Jobs(t *testing.T, subject func(t *testing.T) Subject) {
	d := NewJobs(t)
	p := &probe{t, subject(t), map[string]bool{}}
	c := jobs.NewClient(d.DB)
	add := func(args jobs.Args, options ...jobs.EnqueueOption) {
		t.Helper()
		if _, err := c.Enqueue(t.Context(), nil, args, options...); err != nil {
			t.Fatal(err)
		}
	}
	o, err := ops.NewJobs(d.DB)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.PauseQueue(t.Context(), "paused", by); err != nil {
		t.Fatal(err)
	}
	d.Exec(t, `INSERT INTO jobs_schedules (name, hash, next_at) VALUES ('nightly', 'h', now() - interval '1 hour'), ('hourly', 'h', now() + interval '1 hour');
		INSERT INTO jobs_flow_runs (flow, version, unfinished) VALUES ('f', 'v', 1)`)
	if err := o.PauseSchedule(t.Context(), "hourly", by); err != nil {
		t.Fatal(err)
	}
	add(Task{}, jobs.Queue("paused"), jobs.At(time.Now().Add(-time.Hour)))
	add(Task{}, jobs.Queue("paused"))
	add(Task{}, jobs.In(time.Hour))
	add(stranger{})
	for _, outcome := range []string{"completed", "completed", "retried", "snoozed", "failed", "cancelled"} {
		add(Task{outcome})
	}
	handlers, held := jobs.NewHandlers(), make(chan struct{})
	jobs.Register(handlers, func(_ context.Context, j *jobs.Job[Task]) error {
		if j.Args.Outcome == "held" {
			<-held
		}
		return j.Args.do(j.Attempt)
	})
	_, end := StartJobs(t, d.DB, p, handlers, jobs.WithQueue("default", 3), jobs.WithQueue("paused", 1))
	p.await("jobs", map[string]string{
		"jobs.worker.up{}": "1", "jobs.worker.leader{}": "1", "jobs.worker.heartbeat.age{}": "> 0", "jobs.unsettled{}": "0",
		"jobs.done{queue=default,kind=task,outcome=completed}": "4", "jobs.done{queue=default,kind=task,outcome=retried}": "1",
		"jobs.done{queue=default,kind=task,outcome=snoozed}": "1", "jobs.done{queue=default,kind=task,outcome=failed}": "1",
		"jobs.done{queue=default,kind=task,outcome=cancelled}": "1",
		"jobs.duration{queue=default,kind=task}":               "8", "jobs.wait.duration{queue=default,kind=task}": "8",
		"jobs.claimed{queue=default}": "8", "jobs.claimed{queue=paused}": "none", "jobs.queue.concurrency{queue=default}": "3", "jobs.queue.running{queue=default}": "0", "jobs.queue.slots.lost{queue=default}": "0",
		"jobs.queue.up{queue=default}": "1", "jobs.queue.paused{queue=paused}": "1", "jobs.queue.paused{queue=default}": "0",
		"jobs.queue.unknown_kinds{queue=default}": "1", "jobs.queue.prefetched{queue=default}": "0",
		"jobs.read.up{}": "1", "jobs.read.age{}": "> 0", "jobs.queue.due{queue=paused}": "2", "jobs.queue.scheduled{queue=default}": "1", "jobs.queue.scheduled{queue=paused}": "0",
		"jobs.queue.oldest.age{queue=paused}":     "> 3500",
		"jobs.schedule.overdue{schedule=nightly}": "> 3500", "jobs.schedule.overdue{schedule=hourly}": "0",
		"jobs.schedule.paused{schedule=nightly}": "0", "jobs.schedule.paused{schedule=hourly}": "1", "jobs.flows.unadvanced{}": "1",
	})
	p.ticks(d, c)
	(&probe{t, subject(t), p.seen}).flows(d, c, handlers)
	p.rows(d)
	d.Exec(t, `ALTER TABLE jobs RENAME COLUMN run_at TO at`)
	p.await("claims that fail", map[string]string{"jobs.claim.failures{queue=default}": "> 0", "jobs.claim.duration{queue=default}": "> 0", "jobs.queue.up{queue=default}": "0"})
	d.Exec(t, `ALTER TABLE jobs RENAME COLUMN at TO run_at`)
	p.await("claims that succeed", map[string]string{"jobs.queue.up{queue=default}": "1"})
	add(Task{"held"})
	p.await("a handler that runs", map[string]string{"jobs.queue.running{queue=default}": "1"})
	d.Exec(t, `DELETE FROM jobs WHERE state = 'running'`)
	close(held)
	p.await("a job that was deleted", map[string]string{"jobs.queue.running{queue=default}": "0", "jobs.lost{queue=default,kind=task}": "1"})
	second := &probe{t, subject(t), p.seen}
	StartJobs(t, d.DB, second, handlers, jobs.WithQueue("default", 1))
	second.await("a second worker", map[string]string{"jobs.worker.up{}": "1", "jobs.worker.leader{}": "0", "jobs.read.up{}": "none", "jobs.queue.due{queue=paused}": "none", "jobs.flows.unadvanced{}": "none"})
	end()
	second.await("a change of the leader", map[string]string{"jobs.worker.leader{}": "1", "jobs.read.up{}": "1", "jobs.queue.due{queue=paused}": "2"})
	p.await("the end of a worker", map[string]string{"jobs.worker.up{}": "0", "jobs.queue.up{queue=default}": "none", "jobs.queue.due{queue=paused}": "none"})
	p.all(ofJobs)
}

// flows runs a worker that advances flows until runs have had each outcome that has no Cancel.
func (p *probe) flows(d *pgtest.Database, c *jobs.Client, handlers *jobs.Handlers) {
	p.t.Helper()
	f := flow.New[string]("letters")
	flow.Add[flow.None](f, "only", func(outcome string) Task { return Task{outcome} }, flow.Enqueue(jobs.Queue("flows")))
	for _, outcome := range []string{"completed", "failed"} {
		if _, err := f.Start(p.t.Context(), flow.NewClient(c), nil, outcome); err != nil {
			p.t.Fatal(err)
		}
	}
	_, end := StartJobs(p.t, d.DB, p, handlers, jobs.WithQueue("flows", 2), flow.Advance())
	p.await("runs of flows", map[string]string{
		"jobs.flow.runs{flow=letters,outcome=completed}": "1", "jobs.flow.runs{flow=letters,outcome=failed}": "1", "jobs.flow.duration{flow=letters}": "2",
	})
	end()
}

// always is a Spec whose ticks are close to each other.
type always struct{}

func (always) Next(t time.Time) time.Time { return t.Add(50 * time.Millisecond) }

// ticks runs a Scheduler until it has had each outcome.
func (p *probe) ticks(d *pgtest.Database, c *jobs.Client) {
	p.t.Helper()
	later := schedule.Enqueue(jobs.In(time.Hour), jobs.Queue("ticks"))
	s := schedule.New(d.DB, c,
		schedule.Job("often", always{}, func(time.Time) jobs.Args { return Task{} }, later),
		schedule.Job("unique", always{}, func(time.Time) jobs.Args { return Task{} }, later, schedule.Enqueue(jobs.Unique("tick"))),
		schedule.Job("broken", always{}, func(time.Time) jobs.Args { return nil })).WithObserver(p.Observer())
	ctx, cancel := context.WithCancel(context.Background())
	end := run(p.t, func(context.Context) error { return s.Start(ctx) }, cancel)
	p.await("ticks", map[string]string{
		"jobs.schedule.ticks{schedule=often,outcome=enqueued}": "> 2", "jobs.schedule.late.duration{schedule=often}": "> 2",
		"jobs.schedule.ticks{schedule=unique,outcome=enqueued}": "1", "jobs.schedule.ticks{schedule=unique,outcome=passed}": "> 0",
		"jobs.schedule.ticks{schedule=broken,outcome=failed}": "> 0", "jobs.schedule.ticks{schedule=broken,outcome=enqueued}": "none",
		"jobs.schedule.late.duration{schedule=unique}": "1",
	})
	end()
}

// rows runs a worker of a table of the user's until its rows have had each outcome.
func (p *probe) rows(d *pgtest.Database) {
	p.t.Helper()
	d.Exec(p.t, `CREATE TABLE letters (id serial PRIMARY KEY, outcome text NOT NULL, state text NOT NULL DEFAULT 'queued', failure_message text, queued_at timestamptz DEFAULT now(),
		started_at timestamptz, last_heartbeat_at timestamptz, finished_at timestamptz, process_after timestamptz, num_resets integer NOT NULL DEFAULT 0,
		num_failures integer NOT NULL DEFAULT 0, execution_logs json[], worker_hostname text NOT NULL DEFAULT '', cancel boolean NOT NULL DEFAULT false);
		INSERT INTO letters (outcome) VALUES ('completed'), ('errored'), ('held')`)
	store := table.NewStore(d.DB, table.Options[string]{
		TableName: "letters l", ColumnExpressions: []string{"l.outcome"}, OrderByExpression: "l.id",
		Scan:          func(row table.Row) (outcome string, err error) { return outcome, row.Scan(&outcome) },
		MaxNumRetries: 3, RetryAfter: time.Millisecond, StalledMaxAge: 10 * time.Second,
	})
	w := table.NewWorker(store, table.Handler[string]{Handle: func(ctx context.Context, j *table.Job[string]) error {
		switch {
		case j.Record == "held":
			<-ctx.Done()
		case j.Record == "errored" && j.NumFailures == 0:
			return errors.New("not this time")
		}
		return nil
	}}, table.WorkerOptions{NumHandlers: 3, Interval: 20 * time.Millisecond, HeartbeatInterval: 50 * time.Millisecond, Observers: []observe.Observer{p.TableObserver("letters")}})
	p.WatchTable("letters", w)
	p.await("before a start", map[string]string{"jobs.table.up{table=letters,what=worker}": "0", "jobs.table.up{table=letters,what=claim}": "none", "jobs.table.slots{table=letters,state=free}": "none"})
	ctx, cancel := context.WithCancel(context.Background())
	end := run(p.t, func(context.Context) error { return w.Start(ctx) }, cancel)
	p.await("rows", map[string]string{
		"jobs.table.up{table=letters,what=worker}": "1", "jobs.table.up{table=letters,what=loops}": "1", "jobs.table.up{table=letters,what=claim}": "1",
		"jobs.table.up{table=letters,what=heartbeat}": "1", "jobs.table.up{table=letters,what=settle}": "1", "jobs.table.up{table=letters,what=reset}": "1",
		"jobs.table.success.age{table=letters,what=claim}": "> 0", "jobs.table.success.age{table=letters,what=heartbeat}": "> 0", "jobs.table.success.age{table=letters,what=settle}": "> 0",
		"jobs.table.slots{table=letters,state=free}": "2", "jobs.table.slots{table=letters,state=running}": "1", "jobs.table.slots{table=letters,state=unsettled}": "0", "jobs.table.slots{table=letters,state=lost}": "0",
		"jobs.table.claimed{table=letters}": "4", "jobs.table.claim.duration{table=letters}": "> 0", "jobs.table.duration{table=letters}": "3",
		"jobs.table.done{table=letters,outcome=completed}": "2", "jobs.table.done{table=letters,outcome=errored}": "1", "jobs.table.lost{table=letters}": "none",
	})
	d.Exec(p.t, `DELETE FROM letters WHERE outcome = 'held'`)
	p.await("a row that was deleted", map[string]string{"jobs.table.lost{table=letters}": "1", "jobs.table.failures{table=letters,what=claim}": "none"})
	d.Exec(p.t, `ALTER TABLE letters RENAME COLUMN process_after TO later`)
	p.await("claims of rows that fail", map[string]string{
		"jobs.table.failures{table=letters,what=claim}": "> 0", "jobs.table.up{table=letters,what=claim}": "0", "jobs.table.up{table=letters,what=heartbeat}": "1",
	})
	d.Exec(p.t, `ALTER TABLE letters RENAME COLUMN later TO process_after`)
	p.await("claims of rows that succeed", map[string]string{"jobs.table.up{table=letters,what=claim}": "1", "jobs.table.refused{table=letters,what=claim}": "0"})
	d.Exec(p.t, `ALTER TABLE letters ADD CONSTRAINT no CHECK (outcome <> 'refused' OR state <> 'processing')`)
	d.Exec(p.t, `INSERT INTO letters (outcome) VALUES ('refused')`)
	p.await("a row that the table refuses", map[string]string{"jobs.table.refused{table=letters,what=claim}": "1", "jobs.table.refused{table=letters,what=settle}": "0", "jobs.table.up{table=letters,what=claim}": "1"})
	d.Exec(p.t, `ALTER TABLE letters DROP CONSTRAINT no`)
	p.await("a row that is mended", map[string]string{"jobs.table.refused{table=letters,what=claim}": "0", "jobs.table.done{table=letters,outcome=completed}": "3"})
	end()
	p.await("the end of the worker of rows", map[string]string{"jobs.table.up{table=letters,what=worker}": "0", "jobs.table.up{table=letters,what=claim}": "none", "jobs.table.slots{table=letters,state=free}": "none"})
}
