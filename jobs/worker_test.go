package jobs_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/store"
)

// Each job runs once, and the returned error decides its outcome.
func TestRun(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(_ context.Context, j *jobs.Job[task]) error {
		s.note("%d.%d", j.Args.N, j.Attempt)
		switch j.Args.N {
		case 1:
			return j.SetResult(map[string]int{"n": 1})
		case 2:
			return jobs.Fail(errors.New("no"))
		case 3:
			if j.Attempt == 1 {
				return jobs.RetryAfter(10*time.Millisecond, errors.New("again"))
			}
		case 4:
			if j.Attempt == 1 {
				return jobs.Snooze(10 * time.Millisecond)
			}
		case 5:
			return jobs.Discard(errors.New("not needed"))
		case 6:
			panic("boom")
		case 7:
			runtime.Goexit()
		case 8:
			panic(nil) //nolint:govet // that is the test
		}
		return nil
	}, jobs.MaxAttempts(2), jobs.Retry(jobs.Fixed(time.Millisecond)))
	var ids []int64
	for n := range 9 {
		ids = append(ids, s.add(task{n}))
	}
	s.run()
	want := []string{
		"completed 1 0 0 ", "completed 1 0 0 ", "failed 1 1 0 ", "completed 2 1 0 ", "completed 2 0 0 ", "cancelled 1 0 0 ",
		"failed 2 2 0 PANIC", "failed 2 2 0 PANIC", "failed 2 2 0 PANIC",
	}
	for n, id := range ids {
		i := s.ended(id)
		if got := fmt.Sprintf("%s %d %d %d %s", i.State, i.Attempt, i.Failures, i.Resets, i.Code); got != want[n] && !(n == 3 && got == "completed 2 1 0 ") {
			t.Errorf("job %d: %q, want %q (%s)", n, got, want[n], i.Error)
		}
	}
	if r, err := jobs.Wait[map[string]int](t.Context(), s.Client, ids[1]); err != nil || r["n"] != 1 {
		t.Errorf("the result is %v, %v", r, err)
	}
	var failed *jobs.FailedError
	if _, err := jobs.Wait[int](t.Context(), s.Client, ids[2]); !errors.As(err, &failed) || failed.State != jobs.StateFailed || failed.Text != "no" {
		t.Errorf("waiting for what has failed: %v", err)
	}
}

// With RegisterTx effects and completion are one transaction. A job that was rolled back is
// retried.
func TestRunTx(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.d.Exec(t, `CREATE TABLE effects (n int)`)
	var called sync.Map
	jobs.RegisterTx(s.Handlers, func(ctx context.Context, tx *sql.Tx, j *jobs.Job[task]) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES ($1)`, j.Args.N); err != nil {
			return err
		}
		if _, again := called.LoadOrStore(j.ID, true); !again { // an attempt without a connection did not get here
			return errors.New("the first time it fails")
		}
		return nil
	}, jobs.Retry(jobs.Fixed(0)))
	var ids []int64
	for n := range 20 {
		ids = append(ids, s.add(task{n}))
	}
	s.run()
	for _, id := range ids {
		if i := s.ended(id); i.State != jobs.StateCompleted || i.Failures != 1 {
			t.Errorf("job %d is %s, %d failures: %s", id, i.State, i.Failures, i.Error)
		}
	}
	var effects string
	if err := s.d.DB.QueryRow(`SELECT count(*) || ' ' || count(DISTINCT n) FROM effects`).Scan(&effects); err != nil || effects != "20 20" {
		t.Errorf("effects: %s, %v", effects, err)
	}
}

// A batch is one call. The job that makes the batch fail is found, and the other jobs complete.
func TestRunBatch(t *testing.T) {
	t.Parallel()
	for name, tx := range map[string]bool{"plain": false, "transaction": true} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.d.Exec(t, `CREATE TABLE effects (n int)`)
			handle := func(ctx context.Context, on jobs.Querier, all []*jobs.Job[task]) error {
				s.note("%d", len(all))
				for _, j := range all {
					switch j.Args.N {
					case 13:
						return errors.New("thirteen")
					case 7:
						j.Settle(jobs.Fail(errors.New("seven")))
						continue
					}
					if _, err := on.ExecContext(ctx, `INSERT INTO effects VALUES ($1)`, j.Args.N); err != nil {
						return err
					}
				}
				return nil
			}
			if tx {
				jobs.RegisterBatchTx(s.Handlers, func(ctx context.Context, tx *sql.Tx, all []*jobs.Job[task]) error { return handle(ctx, tx, all) },
					jobs.MaxAttempts(1), jobs.BatchSize(32))
			} else {
				jobs.RegisterBatch(s.Handlers, func(ctx context.Context, all []*jobs.Job[task]) error {
					if slices.ContainsFunc(all, func(j *jobs.Job[task]) bool { return j.Args.N == 13 }) {
						s.note("%d", len(all))
						return errors.New("thirteen")
					}
					return handle(ctx, s.d.DB, all)
				}, jobs.MaxAttempts(1), jobs.BatchSize(32))
			}
			var entries []jobs.EnqueueParams
			for n := range 50 {
				entries = append(entries, jobs.EnqueueParams{Args: task{n}})
			}
			all, err := s.EnqueueMany(t.Context(), nil, entries)
			if err != nil {
				t.Fatal(err)
			}
			s.run(jobs.WithQueue("default", 64))
			for n, e := range all {
				want := jobs.StateCompleted
				if n == 13 || n == 7 {
					want = jobs.StateFailed
				}
				if i := s.ended(e.ID); i.State != want {
					t.Errorf("job %d is %s: %s", n, i.State, i.Error)
				}
			}
			var effects string
			if err := s.d.DB.QueryRow(`SELECT count(*) || ' ' || count(DISTINCT n) FROM effects`).Scan(&effects); err != nil || effects != "48 48" {
				t.Errorf("effects: %s, %v; calls with %s jobs", effects, err, s.notes())
			}
			if !slices.Contains(s.notes(), "32") {
				t.Errorf("the calls had %s jobs", s.notes())
			}
		})
	}
}

// Rows that another program wrote may have any time. Each time has its meaning, and no row delays
// another.
func TestJobsWithFarTimes(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(_ context.Context, j *jobs.Job[task]) error {
		s.note("%d at %d", j.Args.N, j.RunAt.Year())
		return nil
	})
	never := s.add(task{0})
	s.d.Exec(t, `UPDATE jobs SET run_at = 'infinity', good_until = 'infinity' WHERE id = $1`, never)
	later := s.add(task{0})
	s.d.Exec(t, `UPDATE jobs SET run_at = '20000-01-01', good_until = '294276-12-31' WHERE id = $1`, later)
	expired := s.add(task{0})
	s.d.Exec(t, `UPDATE jobs SET run_at = '-infinity', good_until = '-infinity' WHERE id = $1`, expired)
	s.d.Exec(t, `INSERT INTO jobs (kind, args, run_at, good_until)
		SELECT 'task', '{"N": 1}', CASE n % 3 WHEN 0 THEN '-infinity' WHEN 1 THEN '4000-01-01 BC' ELSE now() END, 'infinity' FROM generate_series(1, 30) AS n`)
	s.run(jobs.WithQueue("default", 2))
	s.until("all that are due to run", func() bool { return len(s.notes()) == 30 })
	if n := strings.Count(strings.Join(s.notes(), " "), " at 1 "); n < 19 {
		t.Errorf("%d ran with the earliest time: %q", n, s.notes())
	}
	i := s.ended(expired)
	if i.State != jobs.StateExpired || i.RunAt != store.EarliestTime || i.GoodUntil == nil || *i.GoodUntil != store.EarliestTime {
		t.Errorf("what was good until -infinity is %+v", i)
	}
	for id, want := range map[int64]struct {
		runAt time.Time
		ends  bool
	}{never: {time.Time{}, false}, later: {store.LatestTime, true}} {
		i, err := s.Get(t.Context(), id)
		if err != nil || i.State != jobs.StateAvailable || !i.RunAt.Equal(want.runAt) || (i.GoodUntil != nil) != want.ends {
			t.Errorf("job %d: %+v, %v", id, i, err)
		}
	}
}

// A worker of many queues opens few connections, not one for each queue.
func TestConnectionsOfManyQueues(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	const queues = 100
	var opts []jobs.Option
	for n := range queues {
		opts = append(opts, jobs.WithQueue(fmt.Sprint("q", n), 1))
	}
	db := (&pgtest.Database{URL: s.d.URL}).OpenMode(t, pgx.QueryExecModeCacheStatement)
	db.SetMaxIdleConns(queues)
	w, _ := s.runOn(db, append(opts, jobs.WithPollInterval(10*time.Second))...)
	last := s.add(task{1}, jobs.Queue(fmt.Sprint("q", queues-1)))
	s.ended(last)
	s.until("all queues to be looked at", func() bool {
		return !slices.ContainsFunc(w.Status().Queues, func(q jobs.QueueStatus) bool { return q.LastError != nil })
	})
	if n := db.Stats().OpenConnections; n > 70 { // 32 for the loops, and some others; one for each queue would be more
		t.Errorf("%d connections are open", n)
	}
}

// A burst of jobs into an idle system runs as fast as later bursts. The sessions have made their
// plans while the table was small and not analyzed since. No statement reads the whole table for
// long.
func TestPlansOfASmallTable(t *testing.T) {
	tier.Long(t, "TestConnectionsOfManyQueues, and TestPlans of internal/pgdriver, in which a slow statement is planned anew")
	t.Parallel()
	s := newStage(t)
	s.d.Exec(t, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET plan_cache_mode = force_generic_plan', current_database()); END $$`)
	s.d.Exec(t, `ALTER TABLE jobs SET (autovacuum_enabled = off)`)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	db := (&pgtest.Database{URL: s.d.URL}).OpenMode(t, pgx.QueryExecModeCacheStatement)
	db.SetMaxIdleConns(20)
	s.add(task{0})
	s.d.Exec(t, `VACUUM ANALYZE jobs`) // one page
	w, _ := s.runOn(db, jobs.WithQueue("default", 50))
	completed := func() int64 { return w.Status().Queues[0].Completed }
	for n := range int64(5) {
		for range 10 {
			s.add(task{0})
		}
		s.until("the first jobs", func() bool { return completed() == 10*n+11 })
	}
	read := func() (rows int64) { // rows of the tables of jobs that were read
		if err := s.d.DB.QueryRow(`SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relname LIKE 'jobs%'`).Scan(&rows); err != nil {
			t.Fatal(err)
		}
		return rows
	}
	const burst = 50_000
	before := read()
	s.d.Exec(t, `INSERT INTO jobs (kind, args) SELECT 'task', '{}' FROM generate_series(1, $1::int)`, burst)
	began := time.Now()
	s.until("the burst", func() bool { return completed() == 51+burst })
	t.Logf("%d jobs in %v", burst, time.Since(began).Round(time.Millisecond))
	// Statistics appear when a session becomes idle, so those of slow statements are included.
	if n := (read() - before) / burst; n > 300 { // a slow machine replans later
		t.Errorf("the tables were read %d times from end to end", n)
	}
}
