package jobs_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/ops"
)

// The handlers of this test, one for each kind.
type (
	plainJob   struct{ N int }
	txJob      struct{ N int }
	batchJob   struct{ N int }
	batchTxJob struct{ N int }
	slowJob    struct{ N int }
)

func (plainJob) Kind() string   { return "plain" }
func (txJob) Kind() string      { return "tx" }
func (batchJob) Kind() string   { return "batch" }
func (batchTxJob) Kind() string { return "batchtx" }
func (slowJob) Kind() string    { return "slow" }

type answer struct {
	N    int
	Text string
}

func registerAll(s *stage) {
	again := jobs.Retry(jobs.Fixed(0))
	jobs.Register(s.Handlers, func(ctx context.Context, j *jobs.Job[plainJob]) error {
		if j.Attempt == 1 {
			return errors.Join(j.Log(ctx, answer{j.Args.N, "tried"}), errors.New("the first time it fails"))
		}
		return j.SetResult(answer{j.Args.N, `"quoted" \ 'n ü`})
	}, again)
	jobs.RegisterTx(s.Handlers, func(ctx context.Context, tx *sql.Tx, j *jobs.Job[txJob]) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES ($1)`, j.Args.N)
		return errors.Join(err, j.SetResult(answer{N: j.Args.N}))
	}, again)
	jobs.RegisterBatch(s.Handlers, func(ctx context.Context, all []*jobs.Job[batchJob]) error {
		for _, j := range all {
			if j.Args.N%2 == 1 && j.Attempt == 1 {
				j.Settle(jobs.Snooze(0))
			}
		}
		return nil
	}, again)
	jobs.RegisterBatchTx(s.Handlers, func(ctx context.Context, tx *sql.Tx, all []*jobs.Job[batchTxJob]) error {
		for _, j := range all {
			if _, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES ($1)`, j.Args.N); err != nil {
				return err
			}
		}
		return nil
	}, again)
	jobs.Register(s.Handlers, func(ctx context.Context, j *jobs.Job[slowJob]) error {
		s.note("slow")
		<-ctx.Done()
		return ctx.Err()
	}, again)
}

// Jobs work with each driver and each of its query modes. Where possible, they also work behind a
// proxy that pools transactions.
func TestDrivers(t *testing.T) {
	t.Parallel()
	quick := []string{"direct lib/pq", "pgbouncer pgx exec"}
	run := func(name string, open pgtest.Opener, bounced bool) {
		t.Run(name, func(t *testing.T) {
			if !slices.Contains(quick, name) {
				tier.Long(t, "TestDrivers, over two of them")
			}
			t.Parallel()
			testDriver(t, open, bounced)
		})
	}
	for name, open := range pgtest.ThroughBouncer {
		run("direct "+name, open, false)
		run("pgbouncer "+name, open, true)
	}
	for name, open := range pgtest.BrokenByBouncer {
		run("direct "+name, open, false)
	}
}

func testDriver(t *testing.T, open pgtest.Opener, bounced bool) {
	s := newStage(t)
	s.d.Exec(t, `CREATE TABLE effects (n int)`)
	registerAll(s)
	at, leader := s.d, jobs.LeaderStrategyAdvisory
	if bounced {
		at, leader = s.d.Bounced(t, map[string]string{"default_pool_size": "20"}), jobs.LeaderStrategyLease
	}
	db := open(t, at)
	db.SetMaxIdleConns(10)
	s.Client = jobs.NewClient(db)
	ids := s.enqueueEverything(t, db)

	w, stop := s.runOn(db, jobs.WithLeaderStrategy(leader), jobs.WithPrefetch(5), jobs.WithQueue("default", 20), jobs.WithQueue("capped", 5), jobs.WithQueue("slow", 2))
	for id, want := range ids {
		if i := s.ended(id); i.State != want {
			t.Errorf("job %d of kind %s is %s: %s %s", id, i.Kind, i.State, i.Code, i.Error)
		}
	}
	s.expectNothingLeft(t)
	s.d.Exec(t, `DO $$ BEGIN IF (SELECT count(*) || ' ' || count(DISTINCT n) FROM effects) <> '80 80' THEN RAISE 'effects'; END IF; END $$`)

	// Wait works with and without a connection that listens.
	for _, c := range []*jobs.Client{s.Client, jobs.NewClient(db, jobs.WithNotifyConnectionString(s.d.URL))} {
		id := s.add(plainJob{7})
		if a, err := jobs.Wait[answer](t.Context(), c, id); err != nil || a != (answer{7, `"quoted" \ 'n ü`}) {
			t.Errorf("the result is %+v, %v", a, err)
		}
	}
	// A running job can be cancelled.
	id := s.add(slowJob{}, jobs.Queue("slow"))
	s.until("the job to run", func() bool { return len(s.notes()) == 1 })
	if was, err := s.Cancel(t.Context(), nil, id); err != nil || was != jobs.StateRunning {
		t.Errorf("it was %q, %v", was, err)
	}
	if i := s.ended(id); i.State != jobs.StateCancelled || i.Failures != 0 {
		t.Errorf("the job is %s: %s", i.State, i.Error)
	}
	// The worker has claimed and completed jobs without an error.
	if q := w.Status().Queues[0]; q.Claimed == 0 || q.Completed == 0 || q.LastError != nil {
		t.Errorf("the status is %+v", q)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// enqueueEverything enqueues jobs with each option, and returns their expected states.
func (s *stage) enqueueEverything(t *testing.T, db *sql.DB) map[int64]jobs.State {
	t.Helper()
	ctx, ids := t.Context(), map[int64]jobs.State{}
	operator, err := ops.NewJobs(s.d.DB)
	if err == nil {
		err = operator.SetCap(ctx, "capped", 3, ops.By{Operator: "o", Reason: "r"})
	}
	if err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }() // a no-op after the commit
	add := func(tx jobs.Querier, args jobs.Args, want jobs.State, opts ...jobs.EnqueueOption) jobs.Enqueued {
		t.Helper()
		e, err := s.Enqueue(ctx, tx, args, opts...)
		if err != nil {
			t.Fatal(err)
		}
		ids[e.ID] = want
		return e
	}
	full := add(tx, plainJob{1}, jobs.StateCompleted, jobs.At(time.Now().Add(-time.Minute)), jobs.Priority(1), jobs.GoodUntil(time.Now().Add(time.Hour)),
		jobs.Unique("it's \\ a \"key\" ü"), jobs.Meta(map[string]string{"by": "me"}), jobs.MaxAttempts(3), jobs.MaxResets(2), jobs.Queue("capped"))
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if e := add(nil, plainJob{2}, jobs.StateCompleted, jobs.Unique("it's \\ a \"key\" ü")); e != (jobs.Enqueued{ID: full.ID, Existing: true}) {
		t.Errorf("the key was taken by %d: %+v", full.ID, e)
	}
	i, err := s.Get(ctx, full.ID)
	if err != nil || i.Priority != 1 || i.Queue != "capped" || i.GoodUntil == nil || i.MaxAttempts != 3 || i.State != jobs.StateAvailable || !json.Valid(i.Meta) || !strings.Contains(string(i.Meta), "me") {
		t.Errorf("the job is %+v, %v", i, err)
	}
	once := add(nil, plainJob{3}, jobs.StateCompleted, jobs.Once("once", time.Hour))
	if e := add(nil, plainJob{3}, jobs.StateCompleted, jobs.Once("once", 0)); e != (jobs.Enqueued{ID: once.ID, Existing: true}) {
		t.Errorf("enqueued once as %d: %+v", once.ID, e)
	}
	if _, err := s.Enqueue(ctx, nil, plainJob{4}, jobs.Once("once", 0)); !errors.Is(err, jobs.ErrKeyReused) {
		t.Errorf("other arguments under a key of Once: %v", err)
	}
	add(nil, plainJob{5}, jobs.StateCompleted, jobs.In(50*time.Millisecond), jobs.UniqueUntilStart("k"))
	add(nil, plainJob{6}, jobs.StateExpired, jobs.GoodUntil(time.Now().Add(-time.Second)))
	later := add(nil, plainJob{7}, jobs.StateCancelled, jobs.In(time.Hour))
	if was, err := s.Cancel(ctx, nil, later.ID); err != nil || was != jobs.StateAvailable {
		t.Errorf("it was %q, %v", was, err)
	}
	lost, err := db.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	never, err := s.Enqueue(ctx, lost, plainJob{8})
	if err = errors.Join(err, lost.Rollback()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(ctx, never.ID); !errors.Is(err, jobs.ErrNotFound) {
		t.Errorf("a job that was rolled back: %v", err)
	}
	s.enqueueMany(t, ids)
	counts, err := s.Counts(ctx)
	if err != nil || fmt.Sprint(counts) == "[]" {
		t.Errorf("counted: %+v, %v", counts, err)
	}
	return ids
}

func (s *stage) enqueueMany(t *testing.T, ids map[int64]jobs.State) {
	t.Helper()
	var entries []jobs.EnqueueParams
	for n := range 2500 {
		var args jobs.Args = batchJob{n}
		switch {
		case n < 40:
			args = txJob{n}
		case n < 80:
			args = batchTxJob{n}
		case n < 120:
			args = plainJob{n}
		}
		e := jobs.EnqueueParams{Args: args}
		if n >= 100 && n < 120 {
			e.Options = []jobs.EnqueueOption{jobs.Queue("capped"), jobs.Unique(fmt.Sprint("many ", n))}
		}
		entries = append(entries, e)
	}
	all, err := s.EnqueueMany(t.Context(), nil, entries)
	if err != nil || len(all) != len(entries) {
		t.Fatalf("enqueued %d jobs, %v", len(all), err)
	}
	for _, e := range all {
		if ids[e.ID] != "" || e.ID == 0 || e.Existing {
			t.Fatalf("enqueued %+v", e)
		}
	}
	for _, e := range append(all[:200:200], all[2400:]...) {
		ids[e.ID] = jobs.StateCompleted
	}
}

// expectNothingLeft waits until no job is unfinished.
func (s *stage) expectNothingLeft(t *testing.T) {
	t.Helper()
	s.until("all jobs to finish", func() bool {
		counts, err := s.Counts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(counts) == 0
	})
}

// Start refuses a proxy that cannot work, and names the remedy.
func TestPgBouncerRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	bounced := s.d.Bounced(t, map[string]string{"default_pool_size": "6"})
	for name, open := range pgtest.BrokenByBouncer {
		err := jobs.NewWorker(open(t, bounced), s.Handlers, jobs.WithLeaderStrategy(jobs.LeaderStrategyLease)).Start(t.Context())
		if err == nil || !strings.Contains(err.Error(), "default_query_exec_mode=exec") || !strings.Contains(err.Error(), "binary_parameters=yes") {
			t.Errorf("%s: Start returned %v", name, err)
		}
	}
	for name, open := range map[string]pgtest.Opener{"pgx exec": pgtest.ThroughBouncer["pgx exec"], "lib/pq": pgtest.BrokenByBouncer["lib/pq"]} {
		err := jobs.NewWorker(open(t, bounced), s.Handlers).Start(t.Context())
		if err == nil || !strings.Contains(err.Error(), "LeaderStrategyLease") {
			t.Errorf("%s, with session locks: Start returned %v", name, err)
		}
	}
}

// The jobs of a worker that dies behind a proxy run on another worker, once the heartbeats are
// missing.
func TestDeadWorkerBehindPgBouncer(t *testing.T) {
	for name, open := range pgtest.ThroughBouncer {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			jobs.Register(s.Handlers, func(ctx context.Context, j *jobs.Job[task]) error {
				s.note("began")
				if j.Attempt == 1 {
					<-ctx.Done()
				}
				return ctx.Err()
			})
			db := open(t, s.d.Bounced(t, map[string]string{"default_pool_size": "6"}))
			id := s.add(task{})
			lease := jobs.WithLeaderStrategy(jobs.LeaderStrategyLease)
			w, _ := s.runOn(db, lease)
			s.until("the job to run", func() bool { return len(s.notes()) == 1 })
			// The worker counts as dead: its row has another ID.
			s.d.Exec(t, `UPDATE jobs SET claimed_by = gen_random_uuid(), claim = 1 WHERE claimed_by = '`+w.ID().String()+`'`)
			s.runOn(db, lease)
			if i := s.ended(id); i.State != jobs.StateCompleted || i.Resets != 1 || i.Failures != 0 {
				t.Errorf("the job is %s, %d resets, %d failures", i.State, i.Resets, i.Failures)
			}
		})
	}
}

// Start refuses settings of the role whose formats pgx cannot read.
func TestStartRefusesFormatsThatTheDriverCannotRead(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	err := jobs.NewWorker(s.d.InMode(pgx.QueryExecModeExec).OpenSet(t, "DateStyle", "SQL, DMY"), s.Handlers).Start(t.Context())
	if err == nil || !strings.Contains(err.Error(), "set DateStyle to ISO and bytea_output to hex") {
		t.Errorf("Start returned %v", err)
	}
}
