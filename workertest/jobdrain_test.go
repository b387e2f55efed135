package workertest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/workertest"
)

// step is a job that enqueues the next one.
type step struct{ Left int }

func (step) Kind() string { return "step" }

func newJobs(t *testing.T, table string) (*pgtest.Database, *jobs.Client) {
	d := pgtest.New(t)
	if err := migrations.ApplyJobs(t.Context(), d.DB, &migrations.Config{Names: store.Names{Jobs: table}}); err != nil {
		t.Fatal(err)
	}
	return d, jobs.NewClient(d.DB, jobs.WithNames(store.Names{Jobs: table}))
}

func enqueue(t *testing.T, c *jobs.Client, args jobs.Args, opts ...jobs.EnqueueOption) int64 {
	t.Helper()
	e, err := c.Enqueue(t.Context(), nil, args, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return e.ID
}

func drainJobs(t *testing.T, d *pgtest.Database, h *jobs.Handlers, opts ...jobs.Option) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return workertest.Drain(ctx, d.DB, h, opts...)
}

// Drain runs due jobs and all jobs that they enqueue, in every queue. Jobs that are due later
// or have no handler are left alone.
func TestDrain(t *testing.T) {
	t.Parallel()
	d, c := newJobs(t, "work")
	h := jobs.NewHandlers()
	jobs.RegisterTx(h, func(ctx context.Context, tx *sql.Tx, j *jobs.Job[step]) error {
		if j.Args.Left == 0 {
			return nil
		}
		_, err := c.Enqueue(ctx, tx, step{j.Args.Left - 1}, jobs.Queue(fmt.Sprintf("q%d", j.Args.Left)))
		return err
	})
	if err := drainJobs(t, d, h, jobs.WithNames(store.Names{Jobs: "work"})); err != nil {
		t.Errorf("nothing: %v", err)
	}
	enqueue(t, c, step{3})
	enqueue(t, c, step{9}, jobs.In(time.Hour))
	enqueue(t, c, charge{5}, jobs.Unique("k"), jobs.Priority(2), jobs.Meta("m"), jobs.MaxAttempts(4))
	if err := drainJobs(t, d, h, jobs.WithNames(store.Names{Jobs: "work"})); err != nil {
		t.Fatal(err)
	}
	steps, err := workertest.Enqueued[step](t.Context(), d.DB, jobs.WithNames(store.Names{Jobs: "work"}))
	var got []string
	for _, s := range steps {
		got = append(got, fmt.Sprintf("%d %s %s", s.Args.Left, s.Queue, s.State))
	}
	if want := "[3 default completed 9 default available 2 q3 completed 1 q2 completed 0 q1 completed]"; err != nil || fmt.Sprint(got) != want {
		t.Errorf("steps %v, want %v, %v", got, want, err)
	}
	charges, err := workertest.Enqueued[charge](t.Context(), d.DB, jobs.WithNames(store.Names{Jobs: "work"}))
	if err != nil || len(charges) != 1 {
		t.Fatal(charges, err)
	}
	if j := charges[0]; j.Args.Cents != 5 || j.UniqueKey != "k" || j.Priority != 2 || string(j.Meta) != `"m"` || j.MaxAttempts != 4 || j.State != jobs.StateAvailable || j.Kind != "charge" {
		t.Errorf("%+v", j)
	}
}

// Enqueued in an open transaction lists the transaction's own jobs.
func TestEnqueuedInATransaction(t *testing.T) {
	t.Parallel()
	d, c := newJobs(t, "jobs")
	handler := &counter{name: "c", before: func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
		_, err := c.EnqueueFor(ctx, tx, e, step{int(e.GlobalPosition)})
		return err
	}}
	d.Exec(t, `CREATE TABLE counts (id TEXT PRIMARY KEY, n INT NOT NULL)`)
	if err := workertest.Handle(t.Context(), d.DB, handler, []store.Event{event("Order", "a"), event("Order", "b")}, func(tx *sql.Tx) error {
		all, err := workertest.Enqueued[step](t.Context(), tx)
		if err == nil && (len(all) != 2 || all[1].Args.Left != 2) {
			t.Errorf("within: %+v", all)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if all, err := workertest.Enqueued[step](t.Context(), d.DB); err != nil || len(all) != 0 {
		t.Errorf("afterwards: %+v, %v", all, err)
	}
}

// Drain returns the errors of jobs that failed in the end, and no others.
func TestDrainReturnsFailures(t *testing.T) {
	t.Parallel()
	d, c := newJobs(t, "jobs")
	h := jobs.NewHandlers()
	jobs.Register(h, func(_ context.Context, j *jobs.Job[step]) error {
		switch {
		case j.Args.Left == 1 && j.Attempt == 1: // the second attempt succeeds
			return jobs.RetryAfter(0, errors.New("once"))
		case j.Args.Left == 2:
			return jobs.Snooze(time.Hour)
		case j.Args.Left == 3:
			return jobs.Discard(errors.New("not needed"))
		case j.Args.Left == 4:
			return errBoom
		case j.Args.Left == 5:
			return jobs.Fail(errors.New("never"))
		}
		return nil
	})
	for n := range 4 {
		enqueue(t, c, step{n})
	}
	if err := drainJobs(t, d, h); err != nil {
		t.Fatal(err)
	}
	four, five := enqueue(t, c, step{4}), enqueue(t, c, step{5})
	want := fmt.Sprintf(`workertest: job %d of kind "step": boom; job %d of kind "step": never`, four, five)
	if err := drainJobs(t, d, h); !errors.Is(err, errBoom) || strings.ReplaceAll(err.Error(), `\n`, "; ") != want {
		t.Errorf("%v, want %v", err, want)
	}
}

// After a timeout, the error names the awaited jobs.
func TestDrainTimeoutNamesAwaitedJobs(t *testing.T) {
	t.Parallel()
	d, c := newJobs(t, "jobs")
	h := jobs.NewHandlers()
	if err := drainJobs(t, d, h); err != nil {
		t.Errorf("without handlers there is nothing to do: %v", err)
	}
	jobs.Register(h, func(ctx context.Context, _ *jobs.Job[step]) error { <-ctx.Done(); return ctx.Err() })
	enqueue(t, c, step{1})
	expectDrain := func(wants ...string) {
		t.Helper()
		for limit := 500 * time.Millisecond; ; limit *= 2 {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			err := workertest.Drain(ctx, d.DB, h)
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("got %v, want the deadline to be exceeded", err)
			}
			found := true
			for _, want := range wants {
				found = found && strings.Contains(err.Error(), want)
			}
			if found {
				return
			}
			if limit > patience {
				t.Fatalf("after %v: %v, want %q", limit, err, wants)
			}
		}
	}
	expectDrain(`the end of job 1 of kind "step", which runs in queue 'default'`)
	d.Exec(t, `INSERT INTO jobs_queues (name, paused_at) VALUES ('*', clock_timestamp())`)
	expectDrain(`the end of job 1 of kind "step", which is due in queue 'default', which is paused`)
}

// Drain returns the worker's error at once.
func TestDrainWithoutTables(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	h := jobs.NewHandlers()
	jobs.Register(h, func(context.Context, *jobs.Job[step]) error { return nil })
	if err := drainJobs(t, d, h, jobs.WithQueue("q", 1)); !errors.Is(err, migrations.ErrNotApplied) {
		t.Error(err)
	}
	if err := drainJobs(t, d, h); err == nil {
		t.Error("no error")
	}
	if err := workertest.Drain(t.Context(), nil, h); err == nil {
		t.Error("no error without a database")
	}
}
