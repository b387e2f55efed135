package table_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/jobs/table"
	"github.com/pgfrontier/worker/observe"
)

// Rows are claimed in the user's order. Rows that do not meet the condition, or are due later, are
// not claimed.
func TestOrderAndCondition(t *testing.T) {
	t.Parallel()
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

// A table in another schema runs like any other, if all its columns have other names and other
// types.
func TestRenames(t *testing.T) {
	t.Parallel()
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
		MaxNumRetries:     2, RetryAfter: time.Millisecond, StalledMaxAge: 4 * time.Second,
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

// At most NumHandlers jobs run at once, and no job is claimed before it has a slot.
func TestNumHandlers(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	var running, most atomic.Int32
	s.h.Handle = func(context.Context, *table.Job[example]) error {
		for n, m := running.Add(1), most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
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

// The hooks make a budget. Jobs that do not fit are not claimed, and no job is claimed before the
// hook allows it.
func TestHooks(t *testing.T) {
	t.Parallel()
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

// An Observer that ends its goroutine in each hook ends no goroutine of the worker.
func TestObserverThatExits(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.o.StalledMaxAge = 2 * time.Second
	s.h.Handle = func(_ context.Context, j *table.Job[example]) error {
		if j.Record.Repository == "repo 2" {
			return errRefused
		}
		return nil
	}
	w := s.run(func(o *table.WorkerOptions) {
		o.Observers = []observe.Observer{observe.On(func(observe.WorkerStarted) { runtime.Goexit() }),
			observe.On(func(observe.WorkerStopped) { runtime.Goexit() }),
			observe.On(func(observe.JobsClaimed) { runtime.Goexit() }),
			observe.On(func(observe.JobDone) { runtime.Goexit() }),
			observe.On(func(observe.RowsHidden) { runtime.Goexit() }),
			observe.On(func(observe.RowReset) { runtime.Goexit() }),
			observe.On(func(observe.StatementFailed) { runtime.Goexit() }),
			observe.On(func(observe.Recovered) { runtime.Goexit() }),
			observe.On(func(observe.HookPanicked) { runtime.Goexit() }), observe.On(func(observe.JobDone) { s.note("done") }),
			observe.On(func(p observe.HookPanicked) { s.note("%s: %s", p.Hook, p.Panic) })}
	})
	failed, lost := s.add(`(repository_id) VALUES (2)`), s.add(abandoned+`5, false`)
	s.add(`(repository_id) VALUES (99)`)
	s.becomes(failed, table.StateFailed)
	s.becomes(lost, table.StateFailed)
	s.d.Exec(t, `ALTER TABLE example_jobs RENAME TO away`)
	s.until("the trouble to show", func() bool { return w.Status().ClaimError != nil })
	s.d.Exec(t, `ALTER TABLE away RENAME TO example_jobs`)
	s.becomes(s.add(""), table.StateCompleted)
	s.until("all to be reported", func() bool {
		n := s.notes()
		return slices.Contains(n, "done") && slices.Contains(n, "JobDone: it called runtime.Goexit") && slices.Contains(n, "RowReset: it called runtime.Goexit")
	})
}

// A hook that fails, panics or exits blocks claims or has no effect. It is reported, and the worker
// goes on.
func TestHooksThatFail(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	var recovered atomic.Bool
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
		o.Observers = []observe.Observer{observe.On(func(f observe.StatementFailed) {
			if errors.Is(f.Err, errRefused) || pgdriver.FaultOf(f.Err) != pgdriver.FaultServer { // a slow server refuses nothing
				s.note("failed %s", f.Condition)
			}
		}),
			observe.On(func(p observe.HookPanicked) { s.note("%s: %s", p.Hook, p.Panic) }),
			observe.On(func(r observe.Recovered) { recovered.CompareAndSwap(false, r.Condition == observe.ConditionClaim) }),
			observe.On(func(observe.JobDone) { panic("in the observer") })}
	})
	id := s.add("")
	s.becomes(id, table.StateCompleted)
	s.until("the slot", func() bool { return w.Status().Running == 0 })
	s.until("the claims to recover", recovered.Load)
	want := []string{"failed claim", "PreDequeue: boom", "failed claim", "PreHandle: before", "JobDone: in the observer", "PostHandle: it called runtime.Goexit"}
	s.until("all to be reported", func() bool { return len(s.notes()) >= len(want) })
	got := s.notes()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("reported %q, want %q", got, want)
	}
}
