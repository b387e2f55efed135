package table_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker/jobs/table"
)

// Rows are claimed in the user's order, and those that do not meet the condition, or
// are due later, are left alone.
func TestOrderAndCondition(t *testing.T) {
	s := newStage(t)
	s.o.OrderByExpression = "(SELECT length(r.name) FROM repo AS r WHERE r.id = j.repository_id) DESC, j.repository_id DESC"
	s.o.Condition = "j.repository_id <> 15"
	s.h.Handle = func(_ context.Context, j *table.Job[example]) error {
		s.note("%s", j.Record.Repository)
		return nil
	}
	s.d.Exec(t, `INSERT INTO example_jobs (repository_id, process_after) SELECT i, CASE WHEN i = 16 THEN now() + interval '1 hour' ELSE now() - interval '1 hour' END FROM generate_series(8, 17) AS i`)
	s.run(func(o *table.WorkerOptions) { o.NumHandlers = 1 })
	s.until("eight rows to be done", func() bool { return len(s.notes()) >= 8 })
	want := []string{"repo 17", "repo 14", "repo 13", "repo 12", "repo 11", "repo 10", "repo 9", "repo 8"}
	if got := s.notes(); !slices.Equal(got, want) {
		t.Errorf("%q ran, want %q", got, want)
	}
	s.want("the others", "queued queued", `SELECT string_agg(state, ' ') FROM example_jobs WHERE repository_id IN (15, 16)`)
}

// A table whose columns all have other names, of other types, in another schema, is run
// like any other.
func TestRenames(t *testing.T) {
	s := newStage(t)
	if _, err := s.d.OpenPQ(t).ExecContext(t.Context(), `
CREATE SCHEMA "work";
CREATE TYPE work.status AS ENUM ('queued', 'processing', 'errored', 'failed', 'completed', 'canceled', 'more');
CREATE DOMAIN work.stamp AS timestamptz;
CREATE TABLE work.tasks (
	"order" smallint PRIMARY KEY, status work.status DEFAULT 'queued', reason varchar(20), entered work.stamp DEFAULT now(), began work.stamp, beat timestamptz(6),
	ended timestamptz, not_before timestamptz, lost bigint DEFAULT 0, bad smallint DEFAULT 0, notes jsonb[], "user" varchar(60), stop boolean);
INSERT INTO work.tasks ("order") VALUES (1), (2);
INSERT INTO work.tasks ("order", status, began) VALUES (3, 'processing', now() - interval '1 hour')`); err != nil {
		t.Fatal(err)
	}
	store := table.NewStore(s.d.DB, table.Options[int]{
		TableName: "Work.Tasks AS x",
		AlternateColumnNames: map[string]string{"id": "order", "state": "status", "failure_message": "reason", "queued_at": "entered", "started_at": "began", "last_heartbeat_at": "beat",
			"finished_at": "ended", "process_after": "not_before", "num_resets": "lost", "num_failures": "Bad", "execution_logs": "notes", "worker_hostname": "user", "cancel": "stop"},
		ColumnExpressions: []string{`x."order"`},
		Scan:              func(row table.Row) (n int, err error) { return n, row.Scan(&n) },
		MaxNumRetries:     2, RetryAfter: time.Millisecond, StalledMaxAge: 200 * time.Millisecond,
	})
	h := table.Handler[int]{Handle: func(ctx context.Context, j *table.Job[int]) error {
		if _, err := j.Log(ctx, j.Record); err != nil || j.Record == 2 {
			return errors.Join(err, errors.New("a reason that is longer than twenty characters"))
		}
		return nil
	}}
	s.start(table.NewWorker(store, h, table.WorkerOptions{Interval: 20 * time.Millisecond, WorkerHostname: "here"}))
	s.until("all to end", func() bool {
		return s.text(`SELECT string_agg("order" || ' ' || status || ' ' || bad || ' ' || lost || ' ' || coalesce(notes::text, '') || ' ' || coalesce(reason, '-'), ', ' ORDER BY "order") FROM work.tasks`) ==
			`1 completed 0 0 {1} -, 2 failed 2 0 {2} a reason that is lon, 3 completed 0 1 {3} -`
	})
	if err := store.Requeue(t.Context(), 2, time.Now().Add(time.Hour)); err != nil {
		t.Error(err)
	}
	if n, err := store.CountByState(t.Context(), table.StateQueued, table.StateFailed); n != 1 || err != nil {
		t.Errorf("%d rows, %v", n, err)
	}
}

// No more jobs run at once than there are handlers, and none is claimed before there is
// room for it.
func TestNumHandlers(t *testing.T) {
	s := newStage(t)
	var running, most atomic.Int32
	s.h.Handle = func(context.Context, *table.Job[example]) error {
		if n := running.Add(1); n > most.Load() {
			most.Store(n)
		}
		s.until("three to run", func() bool { return most.Load() >= 3 })
		if n := s.text(`SELECT count(*)::text FROM example_jobs WHERE state = 'processing'`); n > "3" {
			s.note("%s are claimed", n)
		}
		running.Add(-1)
		return nil
	}
	s.d.Exec(t, `INSERT INTO example_jobs (repository_id) SELECT 1 FROM generate_series(1, 60)`)
	w := s.run(func(o *table.WorkerOptions) { o.NumHandlers = 3 })
	s.until("all to complete", func() bool { return w.Status().Completed == 60 })
	if most.Load() != 3 || len(s.notes()) > 0 {
		t.Errorf("%d ran at once; %q", most.Load(), s.notes())
	}
}

// The hooks make a budget: what does not fit is not claimed, and nothing is before the
// hook says so.
func TestHooks(t *testing.T) {
	s := newStage(t)
	var mu sync.Mutex
	used, most := 0, 0
	var dequeueable atomic.Bool
	declined := make(chan struct{}, 1000)
	size := func(j *table.Job[example]) (n int) {
		_, err := fmt.Sscanf(j.Record.Repository, "repo %d", &n)
		if err != nil {
			t.Error(err)
		}
		return n
	}
	s.h.PreDequeue = func(context.Context) (bool, table.Condition, error) {
		mu.Lock()
		defer mu.Unlock()
		if !dequeueable.Load() {
			declined <- struct{}{}
		}
		return dequeueable.Load(), table.Condition{SQL: "j.repository_id <= $1", Args: []any{10 - used}}, nil
	}
	s.h.PreHandle = func(_ context.Context, j *table.Job[example]) {
		mu.Lock()
		defer mu.Unlock()
		used += size(j)
		most = max(most, used)
	}
	s.h.PostHandle = func(ctx context.Context, j *table.Job[example]) {
		if state := s.state(j.ID); state == "processing" {
			s.note("it is not stored yet")
		}
		mu.Lock()
		defer mu.Unlock()
		used -= size(j)
	}
	s.h.Handle = func(_ context.Context, j *table.Job[example]) error {
		if j.ID%3 == 0 {
			panic("boom")
		}
		return nil
	}
	s.o.MaxNumRetries, s.o.RetryAfter = 0, 0
	s.d.Exec(t, `INSERT INTO example_jobs (repository_id) SELECT 1 + i % 10 FROM generate_series(1, 40) AS i`)
	w := s.run(func(o *table.WorkerOptions) { o.NumHandlers = 8 })
	for range 3 {
		<-declined
	}
	if w.Status().Claimed > 0 {
		t.Error("jobs were claimed though the hook declined")
	}
	dequeueable.Store(true)
	s.until("all to end", func() bool { return w.Status().Completed+w.Status().Failed == 40 })
	s.until("the last hook", func() bool { mu.Lock(); defer mu.Unlock(); return used == 0 })
	if n := s.notes(); most > 10 || len(n) > 0 {
		t.Errorf("%d of 10 were used; %q", most, n)
	}
}

// A hook that fails, panics or exits holds claims up, or changes nothing; it is told,
// and the worker goes on.
func TestHooksThatFail(t *testing.T) {
	s := newStage(t)
	var calls atomic.Int32
	s.h.PreDequeue = func(context.Context) (bool, table.Condition, error) {
		switch calls.Add(1) {
		case 1:
			return true, table.Condition{}, errRefused
		case 2:
			panic("boom")
		case 3:
			runtime.Goexit()
		case 4:
			return true, table.Condition{SQL: "no column"}, nil
		}
		return true, table.Condition{}, nil
	}
	s.h.PreHandle = func(context.Context, *table.Job[example]) { panic("before") }
	s.h.PostHandle = func(context.Context, *table.Job[example]) { runtime.Goexit() }
	w := s.run(func(o *table.WorkerOptions) {
		o.Observers = []table.Observer{{
			Failed:       func(f table.Trouble) { s.note("failed %s", f.What) },
			HookPanicked: func(p table.HookPanic) { s.note("%s: %s", p.Hook, p.Value) },
			Recovered:    func(r table.Recovery) { s.note("recovered %s", r.What) },
			JobDone:      func(table.Done) { panic("in the observer") },
		}}
	})
	id := s.add("")
	s.becomes(id, table.StateCompleted)
	s.until("the slot", func() bool { return w.Status().Running == 0 })
	want := []string{"failed claim", "PreDequeue: boom", "failed claim", "recovered claim", "PreHandle: before", "JobDone: in the observer", "PostHandle: it called runtime.Goexit"}
	s.until("all to be told", func() bool { return len(s.notes()) >= len(want) })
	got := s.notes()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}

// A worker ends by itself after so many jobs, or so long.
func TestBoundsOfAWorker(t *testing.T) {
	s := newStage(t)
	s.d.Exec(t, `INSERT INTO example_jobs (repository_id) SELECT 1 FROM generate_series(1, 50)`)
	w := s.worker(s.d.DB, func(o *table.WorkerOptions) { o.NumTotalJobs = 17 })
	if err := w.Start(t.Context()); err != nil || w.Status().Claimed != 17 || w.Status().Completed != 17 || w.Status().State != table.WorkerStopped {
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

// A stop waits for what runs; after ShutdownTimeout it ends the contexts, and the jobs
// are queued again, uncounted. A handler that ignores that is left behind.
func TestStop(t *testing.T) {
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
				o.Observers = []table.Observer{{JobOverdue: func(table.Header) { s.note("overdue") }}}
			})
			table.SetGrace(w, 100*time.Millisecond)
			id := s.add("")
			result := make(chan error, 1)
			go func() { result <- w.Start(t.Context()) }()
			s.until("the job to run", func() bool { return len(s.notes()) == 1 })
			w.Stop()
			s.until("the worker to drain", func() bool { return w.Status().State != table.WorkerRunning })
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

// A handler that ignores the end of its time is given up: its job is tried again, and
// its slot stays taken until it returns.
func TestOverdue(t *testing.T) {
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
	w := s.worker(s.d.DB, func(o *table.WorkerOptions) { o.NumHandlers, o.MaximumRuntimePerJob = 2, 50*time.Millisecond })
	table.SetGrace(w, 50*time.Millisecond)
	s.start(w)
	id := s.add("")
	s.becomes(id, table.StateCompleted)
	s.until("the end to be told", func() bool { return w.Status().Completed == 1 })
	if n := w.Status().Running; n != 1 {
		t.Errorf("%d slots are taken", n)
	}
	close(release)
	s.until("the slot", func() bool { return w.Status().Running == 0 })
	s.want("the row", "completed 1", `SELECT state || ' ' || num_failures FROM example_jobs WHERE id = $1`, id)
}

// Requeue runs any job again, and takes one that runs away from its handler.
func TestRequeue(t *testing.T) {
	s := newStage(t)
	s.h.Handle = func(ctx context.Context, j *table.Job[example]) error {
		s.note("runs")
		if len(s.notes()) == 1 {
			<-ctx.Done()
			s.note("%v", context.Cause(ctx))
			return errRefused
		}
		return nil
	}
	store := table.NewStore(s.d.DB, s.o)
	w := s.run(nil)
	id := s.add("")
	s.until("the job to run", func() bool { return len(s.notes()) == 1 })
	s.d.Exec(t, `UPDATE example_jobs SET queued_at = NULL WHERE id = $1`, id)
	if err := store.Requeue(t.Context(), id, time.Time{}); err != nil {
		t.Fatal(err)
	}
	s.becomes(id, table.StateCompleted)
	s.until("the first run to be lost", func() bool { return w.Status().Lost == 1 })
	s.want("the row", "completed 0 0 false true", `SELECT state || ' ' || num_failures || ' ' || num_resets || ' ' || cancel || ' ' || (queued_at IS NOT NULL) FROM example_jobs WHERE id = $1`, id)
	if n := s.notes(); !slices.Contains(n, table.ErrClaimLost.Error()) {
		t.Errorf("noted %q", n)
	}
	s.d.Exec(t, `UPDATE example_jobs SET state = 'canceled', cancel = true WHERE id = $1`, id)
	if err := store.Requeue(t.Context(), id, time.Time{}); err != nil {
		t.Fatal(err)
	}
	s.becomes(id, table.StateCompleted)
	if err := store.Requeue(t.Context(), 99, time.Time{}); !errors.Is(err, table.ErrNotFound) {
		t.Errorf("a job that is not there: %v", err)
	}
}

// Counts, and what is asked wrong.
func TestCounts(t *testing.T) {
	s := newStage(t)
	s.o.Condition, s.o.RetryAfter = "j.repository_id < 10", time.Minute
	store := table.NewStore(s.d.DB, s.o)
	s.add(`(state, queued_at) VALUES ('queued', now() - interval '2 hours')`)
	s.add(`(state, queued_at, process_after) VALUES ('queued', now() - interval '9 hours', now() - interval '1 hour')`)
	s.add(`(state, queued_at, process_after) VALUES ('queued', now() - interval '9 hours', now() + interval '1 hour')`)
	s.add(`(state, finished_at) VALUES ('errored', now() - interval '3 hours')`)
	s.add(`(state, queued_at, repository_id) VALUES ('queued', now() - interval '4 hours', 11)`)
	s.add(`(state, queued_at, finished_at) VALUES ('completed', now() - interval '9 hours', now() - interval '9 hours')`)
	ctx := t.Context()
	n, err := store.CountByState(ctx, table.StateQueued, table.StateErrored)
	if n != 4 || err != nil {
		t.Errorf("%d rows, %v", n, err)
	}
	for state, want := range map[table.State]bool{table.StateQueued: true, table.StateFailed: false} {
		if is, err := store.Exists(ctx, state); is != want || err != nil {
			t.Errorf("%s: %t, %v", state, is, err)
		}
	}
	if d, err := store.MaxDurationInQueue(ctx); d.Round(time.Minute) != 179*time.Minute || err != nil {
		t.Errorf("in queue for %v, %v", d, err)
	}
	for _, bad := range [][]table.State{{}, {"done"}, {table.StateQueued, `x","y`}} {
		if _, err := store.CountByState(ctx, bad...); err == nil {
			t.Errorf("%q are counted", bad)
		}
	}
	s.o.TableName = "nothing"
	if _, err := table.NewStore(s.d.DB, s.o).Exists(ctx, table.StateQueued); !errors.Is(err, table.ErrUnfit) {
		t.Errorf("without a table: %v", err)
	}
}

// Entries of the log are numbered, and a number that is not there is an error.
func TestLog(t *testing.T) {
	s := newStage(t)
	s.h.Handle = func(ctx context.Context, j *table.Job[example]) error {
		for want := 1; want <= 2; want++ {
			if n, err := j.Log(ctx, map[string]int{"n": want}); n != want || err != nil {
				return fmt.Errorf("entry %d: %w", n, err)
			}
		}
		for _, bad := range []int{-1, 0, 3} {
			if err := j.UpdateLog(ctx, bad, 1); err == nil {
				return fmt.Errorf("entry %d was changed", bad)
			}
		}
		if _, err := j.Log(ctx, make(chan int)); err == nil {
			return errors.New("a channel was logged")
		}
		return j.UpdateLog(ctx, 2, "two")
	}
	s.run(nil)
	id := s.add("")
	s.becomes(id, table.StateCompleted)
	s.want("the log", `{"n":1} "two"`, `SELECT execution_logs[1]::text || ' ' || execution_logs[2]::text FROM example_jobs WHERE id = $1`, id)
}

// The status is JSON, and what is logged has a line for each hook.
func TestStatusAndLogger(t *testing.T) {
	s := newStage(t)
	var lines strings.Builder
	var mu sync.Mutex
	s.h.Handle = func(_ context.Context, j *table.Job[example]) error {
		if j.NumFailures < 3 {
			return errRefused
		}
		return nil
	}
	w := s.worker(s.d.DB, func(o *table.WorkerOptions) {
		o.Logger = slog.New(slog.NewTextHandler(writer(func(p []byte) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			return lines.Write(p)
		}), &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	if st := w.Status(); st.State != table.WorkerNew || st.NumHandlers != 10 {
		t.Errorf("before the start: %+v", st)
	}
	stop := s.start(w)
	s.becomes(s.add(""), table.StateFailed)
	s.d.Exec(t, `ALTER TABLE example_jobs RENAME TO away`)
	s.until("the trouble to show", func() bool { st := w.Status(); return st.ClaimError != nil && st.ResetError != nil })
	text, err := json.Marshal(w.Status())
	if err != nil || !strings.Contains(string(text), `"ClaimError":"jobs/table: claim rows of`) || !strings.Contains(string(text), `"Failed":3`) {
		t.Errorf("%s, %v", text, err)
	}
	s.d.Exec(t, `ALTER TABLE away RENAME TO example_jobs`)
	s.until("the trouble to be over", func() bool { st := w.Status(); return st.ClaimError == nil && st.ResetError == nil })
	if err := stop(); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, want := range []string{"table worker started", "jobs claimed", "job will be tried again", "job failed", "statement failed, retrying", "recovered", "table worker stopped"} {
		if !strings.Contains(lines.String(), want) {
			t.Errorf("%q is not logged:\n%s", want, &lines)
		}
	}
}

type writer func(p []byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// A server that goes away takes nothing with it: what ended meanwhile is stored when it
// is back, and nothing is counted.
func TestConnectionsThatAreCut(t *testing.T) {
	s := newStage(t)
	s.o.StalledMaxAge = 20 * time.Second
	s.h.Handle = func(_ context.Context, j *table.Job[example]) error { time.Sleep(time.Millisecond); return nil }
	s.d.Exec(t, `INSERT INTO example_jobs (repository_id) SELECT 1 + i % 20 FROM generate_series(1, 2000) AS i`)
	db := s.d.OpenPQ(t)
	db.SetMaxIdleConns(10)
	w := s.worker(db, func(o *table.WorkerOptions) { o.NumHandlers = 20 })
	s.start(w)
	for range 6 {
		s.d.Exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
		claimed := w.Status().Claimed
		s.until("more to be claimed", func() bool { n := w.Status().Claimed; return n > claimed || n >= 2000 })
	}
	s.until("all to complete", func() bool {
		return s.text(`SELECT count(*)::text FROM example_jobs WHERE state = 'completed' AND num_failures + num_resets = 0`) == "2000"
	})
}

// Connections that die in silence hold nothing up for long.
func TestConnectionsThatFallSilent(t *testing.T) {
	s := newStage(t)
	s.o.StalledMaxAge = time.Minute
	release := make(chan struct{})
	s.h.Handle = func(ctx context.Context, _ *table.Job[example]) error { s.note("runs"); <-release; return ctx.Err() }
	db, hole := s.d.OpenHole(t)
	w := s.worker(db, nil)
	table.SetLimit(w, 500*time.Millisecond)
	s.start(w)
	id := s.add("")
	s.until("the job to run", func() bool { return len(s.notes()) == 1 })
	s.until("a heartbeat", func() bool { return !w.Status().LastHeartbeat.IsZero() })
	hole.SwallowAll()
	close(release)
	s.becomes(id, table.StateCompleted)
	s.becomes(s.add(""), table.StateCompleted)
	s.want("what is counted", "0", `SELECT sum(num_failures + num_resets)::text FROM example_jobs`)
}
