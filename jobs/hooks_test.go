package jobs_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/observe"
)

type sized struct{ Megabytes int }

func (sized) Kind() string { return "sized" }

// With a BeforeClaim hook the worker claims only jobs that fit into a budget.
func TestBeforeClaimBudget(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const all = 10
	var used, most atomic.Int64
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[sized]) error {
		if n := used.Load(); n > most.Load() {
			most.Store(n)
		}
		return nil
	})
	var ids []int64
	for _, n := range []int{9, 1, 8, 2, 7, 3} {
		ids = append(ids, s.add(sized{n}))
	}
	sizes := map[int64]int64{}
	for i, n := range []int64{9, 1, 8, 2, 7, 3} {
		sizes[ids[i]] = n
	}
	s.run(jobs.WithQueue("default", 1), jobs.WithHooks(jobs.Hooks{
		BeforeClaim: func(_ context.Context, queue string) jobs.ClaimFilter {
			if queue != "default" {
				t.Errorf("a claim from queue %q", queue)
			}
			return jobs.ClaimFilter{Skip: used.Load() >= all, Condition: `(args->>'Megabytes')::int <= $1`, Args: []any{all - used.Load()}}
		},
		BeforeHandle: func(_ context.Context, h jobs.Header) { used.Add(sizes[h.ID]) },
		AfterHandle:  func(_ context.Context, h jobs.Header, err error) { used.Add(-sizes[h.ID]) },
	}))
	for _, id := range ids {
		if i := s.ended(id); i.State != jobs.StateCompleted {
			t.Errorf("a job is %s", i.State)
		}
	}
	if n := most.Load(); n > all {
		t.Errorf("%d of %d megabytes were used", n, all)
	}
}

// A job that is cancelled while AfterHandle runs keeps the error of its handler.
func TestCancelDuringAfterHandle(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	handling := make(chan context.Context, 1)
	jobs.Register(s.Handlers, func(ctx context.Context, _ *jobs.Job[task]) error {
		handling <- ctx
		return errors.New("boom")
	})
	id := s.add(task{1})
	s.run(jobs.WithHooks(jobs.Hooks{AfterHandle: func(_ context.Context, h jobs.Header, _ error) {
		if _, err := s.Cancel(t.Context(), nil, h.ID); err != nil {
			t.Error(err)
		}
		<-(<-handling).Done() // the worker has heard of it
	}}))
	if i := s.ended(id); i.State != jobs.StateCancelled || !strings.Contains(i.Error, "boom") {
		t.Errorf("the job is %s after %d failures: %q", i.State, i.Failures, i.Error)
	}
}

// AfterHandle follows each BeforeHandle, also if the row of the job is locked.
func TestHooksComeInPairs(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	var before, after atomic.Int64
	begun := make(chan struct{}, 100)
	release, let := gate(t)
	jobs.RegisterTx(s.Handlers, func(context.Context, *sql.Tx, *jobs.Job[task]) error {
		begun <- struct{}{}
		<-release
		return nil
	})
	id := s.add(task{1})
	s.run(jobs.WithHooks(jobs.Hooks{
		BeforeHandle: func(context.Context, jobs.Header) { before.Add(1) },
		AfterHandle:  func(context.Context, jobs.Header, error) { after.Add(1) },
	}))
	<-begun
	lock, err := s.d.DB.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Rollback() }() // ends the lock, also if the test fails
	if _, err := lock.Exec(`SELECT FROM jobs WHERE id = $1 FOR UPDATE`, id); err != nil {
		t.Fatal(err)
	}
	let()
	s.until("AfterHandle while the row is locked", func() bool { return after.Load() == 1 })
	if err := lock.Rollback(); err != nil {
		t.Fatal(err)
	}
	if i := s.ended(id); i.State != jobs.StateCompleted || i.Attempt < 2 {
		t.Errorf("the job is %s after %d attempts", i.State, i.Attempt)
	}
	s.until("the hooks to come in pairs", func() bool { b := before.Load(); return b >= 2 && after.Load() == b })
}

// Middleware wraps the handler. The first middleware is the outermost, and its returned error
// counts.
func TestMiddleware(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error {
		s.note("handler")
		return nil
	}, jobs.MaxAttempts(1))
	around := func(name string) jobs.Middleware {
		return func(ctx context.Context, all []jobs.Header, next func(context.Context) error) error {
			s.note("%s before %d %s", name, len(all), all[0].Kind)
			err := next(ctx)
			s.note("%s after", name)
			if name == "outer" {
				return errors.New("the outer one fails it")
			}
			return err
		}
	}
	id := s.add(task{})
	s.run(jobs.WithMiddleware(around("outer"), around("inner")))
	if i := s.ended(id); i.State != jobs.StateFailed || i.Error != "the outer one fails it" {
		t.Errorf("the job is %s: %s", i.State, i.Error)
	}
	if want := []string{"outer before 1 task", "inner before 1 task", "handler", "inner after", "outer after"}; !slices.Equal(s.notes(), want) {
		t.Errorf("noted: %q", s.notes())
	}
}

// A worker ends after a number of jobs, or after a time.
func TestStopAfter(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	for n := range 10 {
		s.add(task{n})
	}
	if err := jobs.NewWorker(s.d.DB, s.Handlers, append(quick(), jobs.WithStopAfterJobs(4))...).Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	counts, err := s.Counts(t.Context())
	if want := []jobs.Count{{Queue: "default", State: jobs.StateAvailable, Jobs: 6}}; err != nil || !slices.Equal(counts, want) {
		t.Errorf("left are %+v, %v", counts, err)
	}
	if err := jobs.NewWorker(s.d.DB, s.Handlers, append(quick(), jobs.WithStopAfter(100*time.Millisecond))...).Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// With WithStopAfterJobs, a worker that prefetches runs exactly the allowed number of jobs over all
// queues. It releases none. Prefetched jobs that are cancelled do not count.
func TestStopAfterJobsWithPrefetch(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	var ran atomic.Int64
	jobs.Register(s.Handlers, func(ctx context.Context, j *jobs.Job[task]) error {
		if ran.Add(1) == 1 {
			for id := j.ID + 2; id < j.ID+5; id++ {
				if _, err := s.Cancel(ctx, nil, id); err != nil {
					return err
				}
			}
		}
		return nil
	})
	for _, queue := range []string{"a", "b"} {
		for n := range 40 {
			s.add(task{n}, jobs.Queue(queue))
		}
	}
	const most = 21
	w := jobs.NewWorker(s.d.DB, s.Handlers, append(quick(), jobs.WithQueue("a", 1), jobs.WithQueue("b", 2), jobs.WithPrefetch(10), jobs.WithStopAfterJobs(most))...)
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var released int
	if err := s.d.DB.QueryRow(`SELECT count(*) FROM jobs_attempts WHERE outcome = 'released'`).Scan(&released); err != nil || ran.Load() != most || released > 0 {
		t.Errorf("%d jobs ran, want %d; %d were given back, %v", ran.Load(), most, released, err)
	}
}

// Observers get the events. A panic of one observer does not keep events from the others.
func TestObserver(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(_ context.Context, j *jobs.Job[task]) error {
		if j.Args.N == 1 {
			return jobs.Fail(errors.New("no"))
		}
		return j.Log(t.Context(), map[string]int{"n": j.Args.N})
	})
	w, stop := s.runOn(s.d.DB, jobs.WithObserver(observe.On(func(observe.JobDone) { panic("the observer's") })), jobs.WithObserver(observe.On(func(observe.WorkerStarted) { s.note("started") }),
		observe.On(func(i observe.WorkerStopped) { s.note("stopped %v", i.Err) }),
		observe.On(func(c observe.JobsClaimed) { s.note("claimed %d", c.Jobs) }),
		observe.On(func(d observe.JobDone) { s.note("done %s %v", d.State, d.Err) }),
		observe.On(func(u observe.UnknownKinds) { s.note("unknown %v", u.Kinds) }),
		observe.On(func(p observe.HookPanicked) { s.note("panicked %s %s", p.Hook, p.Panic) })))
	good := s.add(task{0})
	s.ended(good)
	s.ended(s.add(task{1}))
	s.add(sized{})
	s.until("the unknown kind to be reported", func() bool { return slices.Contains(s.notes(), "unknown [sized]") })
	if q := w.Status().Queues[0]; q.Completed != 1 || q.Failed != 1 || q.Claimed != 2 || !slices.Equal(q.UnknownKinds, []string{"sized"}) {
		t.Errorf("the status is %+v", q)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"started", "claimed 1", "done completed <nil>", "done failed no", "stopped <nil>", "panicked JobDone the observer's"} {
		if !slices.Contains(s.notes(), want) {
			t.Errorf("no event %q: %q", want, s.notes())
		}
	}
	if n := strings.Count(fmt.Sprint(s.notes()), "panicked"); n != 1 {
		t.Errorf("a panic was reported %d times", n)
	}
	logs, err := s.Logs(t.Context(), good)
	if err != nil || len(logs) != 1 || string(logs[0].Entry) != `{"n": 0}` || logs[0].Attempt != 1 {
		t.Errorf("the log is %+v, %v", logs, err)
	}
}

// An observer that ends its goroutine ends no goroutine of the worker. Outcomes are still stored,
// and handlers are still given up.
func TestObserverThatCallsGoexit(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	release := make(chan struct{})
	jobs.Register(s.Handlers, func(_ context.Context, j *jobs.Job[task]) error {
		if j.Args.N == 0 && j.Attempt == 1 {
			<-release
		}
		return nil
	}, jobs.Timeout(20*time.Millisecond), jobs.Retry(jobs.Fixed(0)))
	ends := func(name string) { s.note("%s", name); runtime.Goexit() }
	w := jobs.NewWorker(s.d.DB, s.Handlers, append(quick(), jobs.WithQueue("default", 2), jobs.WithObserver(observe.On(func(observe.WorkerStarted) { ends("WorkerStarted") }),
		observe.On(func(observe.JobsClaimed) { ends("JobsClaimed") }),
		observe.On(func(observe.JobOverdue) { ends("JobOverdue") }),
		observe.On(func(observe.JobDone) { ends("JobDone") }),
		observe.On(func(observe.WorkerStopped) { ends("WorkerStopped") }),
		observe.On(func(p observe.HookPanicked) { s.note("panicked %s: %s", p.Hook, p.Panic) })))...)
	jobs.SetGrace(w, 20*time.Millisecond)
	result := make(chan error, 1)
	go func() { result <- w.Start(context.WithoutCancel(t.Context())) }()
	for n := range 3 {
		if i := s.ended(s.add(task{n})); i.State != jobs.StateCompleted {
			t.Errorf("job %d is %s", n, i.State)
		}
	}
	close(release)
	s.until("the handler that was given up to return", func() bool { return w.Status().Queues[0].Running == 0 })
	w.Stop()
	if err := <-result; err != nil {
		t.Errorf("the worker ended with %v", err)
	}
	for _, hook := range []string{"WorkerStarted", "JobsClaimed", "JobOverdue", "JobDone", "WorkerStopped"} {
		if !slices.Contains(s.notes(), "panicked "+hook+": it called runtime.Goexit") {
			t.Errorf("no observer was notified of %s: %q", hook, s.notes())
		}
	}
}

// CompleteTx completes a job in a transaction of the handler's own. Without a commit the job has
// failed.
func TestCompleteInATransaction(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.d.Exec(t, `CREATE TABLE effects (n int)`)
	jobs.Register(s.Handlers, func(ctx context.Context, j *jobs.Job[task]) error {
		tx, err := s.d.DB.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if _, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES ($1)`, j.Args.N); err != nil {
			return err
		}
		if err := j.SetResult(j.Args.N); err != nil {
			return err
		}
		if err := j.CompleteTx(ctx, tx); err != nil {
			return err
		}
		if j.Args.N == 1 && j.Attempt == 1 {
			return tx.Rollback()
		}
		return tx.Commit()
	}, jobs.Retry(jobs.Fixed(0)))
	ids := []int64{s.add(task{0}), s.add(task{1})}
	s.run()
	for n, id := range ids {
		if i := s.ended(id); i.State != jobs.StateCompleted || string(i.Result) != fmt.Sprint(n) || i.Failures != n {
			t.Errorf("job %d is %s with %s after %d failures: %s", n, i.State, i.Result, i.Failures, i.Error)
		}
	}
	var effects string
	if err := s.d.DB.QueryRow(`SELECT count(*) || ' ' || count(DISTINCT n) FROM effects`).Scan(&effects); err != nil || effects != "2 2" {
		t.Errorf("effects: %s, %v", effects, err)
	}
}

// A job that waits for a connection beyond its GoodUntil does not begin, and expires. AfterHandle
// follows its BeforeHandle, and other jobs run.
func TestGoodUntilIsOverBeforeTheTransaction(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	var before, after atomic.Int64
	release, let := gate(t)
	begun := make(chan struct{}, 10)
	jobs.RegisterTx(s.Handlers, func(_ context.Context, _ *sql.Tx, j *jobs.Job[task]) error {
		s.note("began %d", j.Args.N)
		begun <- struct{}{}
		<-release
		return nil
	})
	db := (&pgtest.Database{URL: s.d.URL}).OpenMode(t, pgx.QueryExecModeCacheStatement)
	db.SetMaxOpenConns(4) // one transaction at a time
	first := s.add(task{0})
	s.runOn(db, jobs.WithQueue("default", 3), jobs.WithHooks(jobs.Hooks{
		BeforeHandle: func(context.Context, jobs.Header) { before.Add(1) },
		AfterHandle:  func(context.Context, jobs.Header, error) { after.Add(1) },
	}))
	<-begun
	late, inTime := s.add(task{1}, jobs.GoodUntil(time.Now().Add(time.Hour))), s.add(task{2}, jobs.GoodUntil(time.Now().Add(time.Hour)))
	s.until("both to wait for a connection", func() bool { return before.Load() == 3 })
	s.d.Exec(t, `UPDATE jobs SET good_until = clock_timestamp() WHERE id = $1`, late)
	let()
	for id, want := range map[int64]jobs.State{first: jobs.StateCompleted, late: jobs.StateExpired, inTime: jobs.StateCompleted} {
		if i := s.ended(id); i.State != want {
			t.Errorf("job %d is %s, want %s", id, i.State, want)
		}
	}
	if slices.Contains(s.notes(), "began 1") {
		t.Error("the handler began after GoodUntil")
	}
	s.until("the hooks to come in pairs", func() bool { return before.Load() == 3 && after.Load() == 3 })
}

// AfterHandle follows BeforeHandle, also if the transaction gets no connection.
func TestHooksComeInPairsWithoutAConnection(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	var before, after atomic.Int64
	jobs.RegisterTx(s.Handlers, func(context.Context, *sql.Tx, *jobs.Job[task]) error { return nil })
	db := (&pgtest.Database{URL: s.d.URL}).OpenMode(t, pgx.QueryExecModeCacheStatement)
	db.SetMaxOpenConns(5)
	var taken []*sql.Conn
	give := func() {
		for _, conn := range taken {
			_ = conn.Close()
		}
		taken = nil
	}
	defer give()
	s.runOn(db, jobs.WithHooks(jobs.Hooks{
		BeforeHandle: func(ctx context.Context, _ jobs.Header) {
			if before.Add(1) > 1 {
				return
			}
			for len(taken) < 4 { // the application takes all connections except the one of the heartbeats
				if conn, err := db.Conn(ctx); err == nil {
					taken = append(taken, conn)
				}
			}
		},
		AfterHandle: func(_ context.Context, _ jobs.Header, err error) { s.note("after: %v", err); after.Add(1) },
	}))
	id := s.add(task{1})
	s.until("AfterHandle while there is no connection", func() bool { return after.Load() == 1 })
	if notes := s.notes(); !strings.HasPrefix(notes[0], "after: take a connection: ") {
		t.Errorf("noted: %q", notes)
	}
	give()
	if i := s.ended(id); i.State != jobs.StateCompleted {
		t.Errorf("the job is %s", i.State)
	}
	s.until("the hooks to come in pairs", func() bool { b := before.Load(); return b >= 2 && after.Load() == b })
}
