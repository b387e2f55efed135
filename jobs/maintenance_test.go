package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/ops"
)

// Finished jobs are removed after the retention, with their attempts and logs. The retention of a
// queue overrides the worker's.
func TestRetention(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	o, err := ops.NewJobs(s.d.DB)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.SetRetention(t.Context(), "kept", ops.Forever, operator); err != nil {
		t.Fatal(err)
	}
	jobs.Register(s.Handlers, func(ctx context.Context, j *jobs.Job[task]) error {
		if err := j.Log(ctx, "an entry"); err != nil {
			return err
		}
		if j.Attempt == 1 {
			return jobs.RetryAfter(0, errors.New("once"))
		}
		return nil
	})
	kept, gone := s.add(task{}, jobs.Queue("kept")), s.add(task{})
	s.run(jobs.WithQueue("kept", 1), jobs.WithQueue("default", 1), jobs.WithRetention(time.Second))
	s.until("the job to be removed", func() bool {
		_, err := s.Get(t.Context(), gone)
		return errors.Is(err, jobs.ErrNotFound)
	})
	if i := s.ended(kept); i.State != jobs.StateCompleted || len(i.Attempts) == 0 {
		t.Errorf("the kept job is %+v", i)
	}
	var left int
	if err := s.d.DB.QueryRow(`SELECT (SELECT count(*) FROM jobs_attempts WHERE job_id = $1) + (SELECT count(*) FROM jobs_logs WHERE job_id = $1)`, gone).Scan(&left); err != nil || left != 0 {
		t.Errorf("%d attempts and entries are left, %v", left, err)
	}
}

// A finished job that is locked, or whose removal the database refuses, does not delay other jobs.
// Neither do such keys of Once. Refused rows are reported.
func TestRetentionPassesOver(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.d.Exec(t, `INSERT INTO jobs_history (id, kind, queue, priority, run_at, args, created_at, attempt, failures, resets, max_resets, state, finished_at)
		SELECT n, 'task', CASE WHEN n = 1 THEN 'a' WHEN n < 100 THEN 'b' ELSE 'c' END, 5, now(), '{}', now(), 1, 0, 0, 5, 'completed', now() - interval '1 day' FROM generate_series(1, 150) AS n`)
	s.d.Exec(t, `INSERT INTO jobs_once (key, job_id, hash, expires_at) SELECT 'k' || n, n, '', now() - interval '1 hour' FROM generate_series(1, 50) AS n`)
	s.d.Exec(t, `CREATE TABLE invoices (job bigint REFERENCES jobs_history, key text REFERENCES jobs_once)`)
	s.d.Exec(t, `INSERT INTO invoices VALUES (20, 'k20')`)
	lock, err := s.d.DB.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Rollback() }()
	if _, err := lock.Exec(`SELECT FROM jobs_history WHERE id IN (1, 10) FOR UPDATE`); err != nil { // all that the first queue has
		t.Fatal(err)
	}
	if _, err := lock.Exec(`SELECT FROM jobs_once WHERE key = 'k10' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	s.run(jobs.WithRetention(time.Hour), jobs.WithObserver(observe.On(func(f observe.TaskFailed) { s.note("%s: %v", f.Task, f.Err) })))
	left := func(want string) func() bool {
		return func() bool {
			var got string
			if err := s.d.DB.QueryRow(`SELECT coalesce((SELECT string_agg(id::text, ' ' ORDER BY id) FROM jobs_history), '') || ' / ' || coalesce((SELECT string_agg(key, ' ' ORDER BY key) FROM jobs_once), '')`).Scan(&got); err != nil {
				t.Fatal(err)
			}
			return got == want
		}
	}
	s.until("all but the locked and the refused to be removed", left("1 10 20 / k10 k20"))
	for _, want := range []string{"remove finished jobs: job 20: ", "remove old keys: key \"k20\": "} {
		s.until(want, func() bool {
			return slices.ContainsFunc(s.notes(), func(n string) bool { return strings.HasPrefix(n, want) && strings.Contains(n, "others go on") })
		})
	}
	if err := lock.Rollback(); err != nil {
		t.Fatal(err)
	}
	s.until("the locked to be removed", left("20 / k20"))
	s.d.Exec(t, `DROP TABLE invoices`)
	s.until("all to be removed", left(" / "))
}

// A worker reports that IDs of jobs repeat, when it starts and while it runs.
func TestRepeatedIDsAreReported(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.d.Exec(t, `INSERT INTO jobs_history (id, kind, queue, priority, run_at, args, created_at, attempt, failures, resets, max_resets, state)
		VALUES (7, 'task', 'default', 5, now(), '{}', now(), 1, 0, 0, 5, 'completed')`)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	const says = "compare the sequence of jobs: ids of jobs come again: sequence jobs_id_seq is at "
	reported := func() (n int) {
		for _, note := range s.notes() {
			if strings.HasPrefix(note, says) && strings.Contains(note, ": raise it (pgfrontier sequences --raise") {
				n++
			}
		}
		return n
	}
	observed := jobs.WithObserver(observe.On(func(f observe.TaskFailed) { s.note("%s: %v", f.Task, f.Err) }), observe.On(func(observe.WorkerStarted) { s.note("started with %d", reported()) }))
	_, stop := s.runOn(s.d.DB, observed)
	s.until("the worker to start", func() bool { return slices.Contains(s.notes(), "started with 1") })
	o, err := ops.NewJobs(s.d.DB)
	if err != nil {
		t.Fatal(err)
	}
	if raised, err := o.RaiseSequences(t.Context(), operator); err != nil || len(raised) != 1 {
		t.Fatalf("raised %v, %v", raised, err)
	}
	if e := s.add(task{}); e != 8 {
		t.Errorf("the next job is %d", e)
	}
	s.ended(8)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	before := reported()
	s.run(observed)
	s.until("the next worker to start", func() bool { return slices.Contains(s.notes(), fmt.Sprint("started with ", before)) })
	s.d.Exec(t, `TRUNCATE jobs RESTART IDENTITY`)
	s.until("it to be reported while the worker runs", func() bool { return reported() > before })
}

// Jobs of a worker without a row run again.
func TestWorkerWithoutRow(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	id := s.add(task{}, jobs.In(time.Hour))
	s.d.Exec(t, `UPDATE jobs SET state = 'running', attempt = 1, claim = 7, claimed_by = $1::uuid, claimed_at = now(), started_at = now()`, uuid.NewString())
	s.run()
	if i := s.ended(id); i.State != jobs.StateCompleted || i.Resets != 1 {
		t.Errorf("the job is %s after %d resets", i.State, i.Resets)
	}
}

// A worker whose row was removed registers again before it claims, under its name. Otherwise its jobs
// could not be rescued.
func TestRowRemoved(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	w := s.run(jobs.WithHostname("shelf"))
	s.ended(s.add(task{}))
	s.d.Exec(t, `DELETE FROM jobs_workers`)
	if i := s.ended(s.add(task{})); i.State != jobs.StateCompleted {
		t.Errorf("the job is %s", i.State)
	}
	var name string
	if err := s.d.DB.QueryRow(`SELECT hostname FROM jobs_workers WHERE worker_id = $1`, w.ID()).Scan(&name); err != nil || name != "shelf" {
		t.Errorf("the worker has the name %q: %v", name, err)
	}
}

// A worker reports once, after some seconds, each queue with due jobs and no worker, and flows that
// no worker advances. It reports no queue that is served, paused or due later.
func TestUnservedQueuesAreReportedOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	o, err := ops.NewJobs(s.d.DB)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.PauseQueue(t.Context(), "paused", operator); err != nil {
		t.Fatal(err)
	}
	s.add(task{}, jobs.Queue("paused"))
	s.add(task{}, jobs.Queue("later"), jobs.In(time.Hour))
	s.add(task{}, jobs.Queue("mail"))
	s.add(sized{}, jobs.Queue("default")) // no handler, and its queue is served
	s.d.Exec(t, `INSERT INTO jobs_flow_runs (flow, version, unfinished) VALUES ('f', 'v', 1)`)
	s.run(jobs.WithObserver(observe.On(func(f observe.TaskFailed) { s.note("%s: %v", f.Task, f.Err) })))
	const queue, flows = `find queues without a worker: queue "mail" has jobs that are due`, `find flows without a worker: runs of flows have not ended`
	reported := func(what string) (n int) {
		for _, note := range s.notes() {
			if strings.HasPrefix(note, what) {
				n++
			}
		}
		return n
	}
	s.until("both to be reported", func() bool { return reported(queue) == 1 && reported(flows) == 1 })
	s.run(jobs.WithQueue("mail", 1))
	s.until("the job to run", func() bool {
		counts, err := s.Counts(t.Context())
		return err == nil && !slices.ContainsFunc(counts, func(c jobs.Count) bool { return c.Queue == "mail" })
	})
	if len(s.notes()) != 2 {
		t.Errorf("noted: %q", s.notes())
	}
}
