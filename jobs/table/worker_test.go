package table_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/jobs/table"
	"github.com/pgfrontier/worker/observe"
)

// A worker ends by itself after a number of jobs, or after a time.
func TestBoundsOfAWorker(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.d.Exec(t, `INSERT INTO example_jobs (repository_id) SELECT 1 FROM generate_series(1, 50)`)
	w := s.worker(s.d.DB, func(o *table.WorkerOptions) { o.NumTotalJobs = 17 })
	if err := w.Start(t.Context()); err != nil || w.Status().Claimed != 17 || w.Status().Completed != 17 || w.Status().State != observe.StateStopped {
		t.Errorf("%+v, %v", w.Status(), err)
	}
	s.want("what is left", "33", `SELECT count(*)::text FROM example_jobs WHERE state = 'queued'`)
	w = s.worker(s.d.DB, func(o *table.WorkerOptions) { o.MaxActiveTime = time.Millisecond })
	if err := w.Start(t.Context()); err != nil {
		t.Error(err)
	}
	if err := w.Start(t.Context()); !errors.Is(err, table.ErrAlreadyStarted) {
		t.Errorf("a second start: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.worker(s.d.DB, nil).Start(ended); err != nil {
		t.Errorf("with a context that has ended: %v", err)
	}
}

// A stop waits for running jobs. After ShutdownTimeout their contexts end, and the jobs are queued
// again without a failure. A handler that ignores the end is left behind.
func TestStop(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		handle  func(ctx context.Context, release chan struct{}) error
		timeout time.Duration
		want    string
		err     error
	}{
		"waits":          {func(ctx context.Context, release chan struct{}) error { <-release; return ctx.Err() }, 0, "completed 0 0", nil},
		"gives back":     {func(ctx context.Context, _ chan struct{}) error { <-ctx.Done(); return context.Cause(ctx) }, 50 * time.Millisecond, "queued 0 0", nil},
		"leaves behind":  {func(ctx context.Context, release chan struct{}) error { <-ctx.Done(); <-release; return nil }, 50 * time.Millisecond, "queued 0 0", table.ErrHandlerOverdue},
		"completes late": {func(ctx context.Context, _ chan struct{}) error { <-ctx.Done(); return nil }, 50 * time.Millisecond, "completed 0 0", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			release := make(chan struct{})
			free := sync.OnceFunc(func() { close(release) })
			defer free()
			s.h.Handle = func(ctx context.Context, _ *table.Job[example]) error {
				s.note("runs")
				defer s.note("returned")
				return c.handle(ctx, release)
			}
			w := s.worker(s.d.DB, func(o *table.WorkerOptions) {
				o.ShutdownTimeout = c.timeout
				o.Observers = []observe.Observer{observe.On(func(observe.JobOverdue) { s.note("overdue") })}
			})
			table.SetGrace(w, 100*time.Millisecond)
			id := s.add("")
			result := make(chan error, 1)
			go func() { result <- w.Start(t.Context()) }()
			s.until("the job to run", func() bool { return len(s.notes()) == 1 })
			w.Stop()
			s.until("the worker to drain", func() bool { return w.Status().State != observe.StateRunning })
			if name == "waits" {
				free()
			}
			if err := <-result; !errors.Is(err, c.err) || (c.err == nil) != (err == nil) {
				t.Errorf("Start: %v", err)
			}
			s.want("the row", c.want, `SELECT state || ' ' || num_failures || ' ' || num_resets FROM example_jobs WHERE id = $1`, id)
			free()
			s.until("the handler to return", func() bool { return slices.Contains(s.notes(), "returned") })
			s.want("the row then", c.want, `SELECT state || ' ' || num_failures || ' ' || num_resets FROM example_jobs WHERE id = $1`, id)
		})
	}
}

// A worker whose pool is closed soon ends, with an error that says so.
func TestPoolThatIsClosed(t *testing.T) {
	t.Parallel()
	for name, busy := range map[string]bool{"idle": false, "busy": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			s.h.Handle = func(ctx context.Context, _ *table.Job[example]) error {
				s.note("runs")
				<-ctx.Done()
				s.note("%v", context.Cause(ctx))
				return ctx.Err()
			}
			db := s.d.OpenPQ(t)
			w := s.worker(db, func(o *table.WorkerOptions) { o.NumHandlers = 1 })
			result := make(chan error, 1)
			go func() { result <- w.Start(t.Context()) }()
			s.until("the worker to run", func() bool { return w.Status().State == observe.StateRunning })
			if busy {
				s.add("")
				s.until("the job to run", func() bool { return len(s.notes()) == 1 })
			}
			if err := db.Close(); err != nil {
				t.Error(err)
			}
			select {
			case err := <-result:
				if !errors.Is(err, table.ErrPoolClosed) || busy != errors.Is(err, table.ErrUnsettled) {
					t.Errorf("Start: %v", err)
				}
			case <-time.After(patience):
				t.Fatalf("the worker does not end: %+v", w.Status())
			}
			if n := s.notes(); busy && !strings.Contains(n[1], table.ErrPoolClosed.Error()) {
				t.Errorf("noted %q", n)
			}
		})
	}
}

// A handler that ignores the end of its time is given up. Its job is retried, and its slot stays
// taken until the handler returns.
func TestOverdue(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	release := make(chan struct{})
	s.h.Handle = func(_ context.Context, j *table.Job[example]) error {
		s.note("runs")
		if j.NumFailures == 0 {
			<-release
			return table.NonRetryable(errRefused)
		}
		return nil
	}
	returned := make(chan observe.JobReturned, 2)
	w := s.worker(s.d.DB, func(o *table.WorkerOptions) {
		o.NumHandlers, o.MaximumRuntimePerJob = 2, 50*time.Millisecond
		o.Observers = []observe.Observer{observe.On(func(r observe.JobReturned) { returned <- r })}
	})
	table.SetGrace(w, 50*time.Millisecond)
	s.start(w)
	id := s.add("")
	s.becomes(id, table.StateCompleted)
	s.until("the end to be reported", func() bool { return w.Status().Completed == 1 })
	s.until("one slot to be taken", func() bool { return w.Status().Running == 1 })
	if st := w.Status(); st.Overdue != 1 || st.OverdueSince.IsZero() {
		t.Errorf("it was given up, and the status is %+v", st)
	}
	if all := w.Running(); len(all) != 1 || all[0].ID != id || !all[0].Overdue || all[0].Since.IsZero() {
		t.Errorf("%+v run", all)
	}
	if all := w.Ready(t.Context(), 0); len(all) > 0 {
		t.Errorf("with one slot left it is not ready: %v", all)
	}
	s.add("")
	s.until("both slots to be lost", func() bool { return w.Status().Overdue == 2 })
	if all := w.Ready(t.Context(), 0); len(all) != 1 || !strings.Contains(all[0].Error(), "given up keep all 2 slots") {
		t.Errorf("without a slot: %v", all)
	}
	close(release)
	for range 2 {
		if r := <-returned; !errors.Is(r.Err, errRefused) || r.Took < 50*time.Millisecond || r.Failures != 0 {
			t.Errorf("returned: %+v", r)
		}
	}
	s.until("the slots", func() bool { return w.Status().Running == 0 })
	if all := w.Running(); len(all) > 0 {
		t.Errorf("then %+v run", all)
	}
	s.want("the row", "completed 1", `SELECT state || ' ' || num_failures FROM example_jobs WHERE id = $1`, id)
}

// Running returns a job from the time it gets its slot until its handler returns.
func TestRunning(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	began, release := make(chan struct{}), make(chan struct{})
	s.h.Handle = func(context.Context, *table.Job[example]) error {
		close(began)
		<-release
		return nil
	}
	w := s.worker(s.d.DB, nil)
	s.start(w)
	before := time.Now()
	id := s.add("")
	<-began
	if all := w.Running(); len(all) != 1 || all[0].ID != id || all[0].Overdue || all[0].Since.Before(before) {
		t.Errorf("%+v run", all)
	}
	close(release)
	s.until("it to have ended", func() bool { return len(w.Running()) == 0 })
}

// The status has a JSON form, and the log has a line for each event.
func TestStatusAndLogger(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	var lines strings.Builder
	var mu sync.Mutex
	s.h.Handle = func(_ context.Context, j *table.Job[example]) error {
		if j.Record.Repository == "repo 2" {
			s.d.Exec(t, `UPDATE example_jobs SET state = 'failed' WHERE id = $1`, j.ID)
			return nil
		}
		return errRefused
	}
	w := s.worker(s.d.DB, func(o *table.WorkerOptions) {
		o.Logger = slog.New(slog.NewTextHandler(writer(func(p []byte) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			return lines.Write(p)
		}), &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	if st := w.Status(); st.State != observe.StateNew || st.NumHandlers != 10 {
		t.Errorf("before the start: %+v", st)
	}
	stop := s.start(w)
	s.becomes(s.add(""), table.StateFailed)
	hid := s.add(`(repository_id) VALUES (99)`)
	s.until("it to be hidden", func() bool {
		return s.text(`SELECT (process_after IS NOT NULL)::text FROM example_jobs WHERE id = $1`, hid) == "true"
	})
	s.add(`(repository_id) VALUES (2)`)
	s.until("one to be ended by its handler", func() bool { return w.Status().Failed == 4 })
	s.d.Exec(t, `ALTER TABLE example_jobs RENAME TO away`)
	s.until("the trouble to show", func() bool { st := w.Status(); return st.ClaimError != nil && st.ResetError != nil })
	away := w.Status()
	if last := away.LastSuccess; away.Refused.Claim != 0 || away.Refused.Reset != 0 || last.Claim.IsZero() || last.Heartbeat.IsZero() || last.Settle.IsZero() {
		t.Errorf("while the table is away: refused %+v, last success %+v", away.Refused, last)
	}
	text, err := json.Marshal(w.Status())
	if err != nil || !strings.Contains(string(text), `"ClaimError":"jobs/table: claim rows of`) || !strings.Contains(string(text), `"Failed":4`) {
		t.Errorf("%s, %v", text, err)
	}
	s.d.Exec(t, `ALTER TABLE away RENAME TO example_jobs`)
	s.until("the trouble to be over", func() bool {
		st := w.Status()
		return st.ClaimError == nil && st.ResetError == nil && st.LastSuccess.Claim.After(away.LastSuccess.Claim)
	})
	if err := stop(); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if strings.Contains(lines.String(), "<nil>") {
		t.Errorf("nil is logged:\n%s", &lines)
	}
	for _, want := range []string{"worker started", "jobs claimed", "job will be tried again", "job failed", "does not show the row", "the row has another state already", "statement failed, retrying", "recovered", "worker stopped"} {
		if !strings.Contains(lines.String(), want) {
			t.Errorf("%q is not logged:\n%s", want, &lines)
		}
	}
}

type writer func(p []byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// A burst of rows into an idle table runs as fast as later bursts. The sessions have made their
// plans while the table was small and not analyzed since.
func TestPlansOfASmallTable(t *testing.T) {
	tier.Long(t, "TestPlans, and TestPlans of internal/pgdriver, in which a slow statement is planned anew")
	t.Parallel()
	s := newStage(t)
	s.d.Exec(t, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET plan_cache_mode = force_generic_plan', current_database()); END $$`)
	s.d.Exec(t, `ALTER TABLE example_jobs SET (autovacuum_enabled = off)`)
	db := (&pgtest.Database{URL: s.d.URL}).OpenMode(t, pgx.QueryExecModeCacheStatement)
	db.SetMaxIdleConns(20)
	s.d.Exec(t, `INSERT INTO example_jobs (state) VALUES ('completed')`)
	s.d.Exec(t, `VACUUM ANALYZE example_jobs`) // one page
	w := s.worker(db, func(o *table.WorkerOptions) { o.NumHandlers = 50 })
	s.start(w)
	for n := range int64(5) {
		s.d.Exec(t, `INSERT INTO example_jobs (repository_id) SELECT 1 FROM generate_series(1, 10)`)
		s.until("the first rows", func() bool { return w.Status().Completed == 10*(n+1) })
	}
	read := func() (rows int64) {
		if err := s.d.DB.QueryRow(`SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'example_jobs'`).Scan(&rows); err != nil {
			t.Fatal(err)
		}
		return rows
	}
	const burst = 20_000
	before := read()
	s.d.Exec(t, `INSERT INTO example_jobs (repository_id) SELECT 1 FROM generate_series(1, $1::int)`, burst)
	began := time.Now()
	s.until("the burst", func() bool { return w.Status().Completed == 50+burst })
	t.Logf("%d rows in %v", burst, time.Since(began).Round(time.Millisecond))
	if n := (read() - before) / burst; n > 300 { // a slow machine replans later
		t.Errorf("the table was read %d times from end to end", n)
	}
}
