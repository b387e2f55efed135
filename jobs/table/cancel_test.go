package table_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pgfrontier/worker/jobs/table"
	"github.com/pgfrontier/worker/observe"
)

// The context of a cancelled job's run ends. The job is canceled if its handler returns any error,
// and counts no failure. If the handler returns nil, the job has completed.
func TestCancelWhileItRuns(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		handle func(ctx context.Context) error
		want   string
	}{
		"returns the cause": {func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }, "canceled 0"},
		"another error":     {func(ctx context.Context) error { <-ctx.Done(); return errRefused }, "canceled 0"},
		"for good":          {func(ctx context.Context) error { <-ctx.Done(); return table.NonRetryable(errRefused) }, "canceled 0"},
		"queues it again":   {func(ctx context.Context) error { <-ctx.Done(); return table.RequeueAfter(0) }, "canceled 0"},
		"panics":            {func(ctx context.Context) error { <-ctx.Done(); panic("boom") }, "canceled 0"},
		"completes":         {func(ctx context.Context) error { <-ctx.Done(); return nil }, "completed 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			s.h.Handle = func(ctx context.Context, _ *table.Job[example]) error {
				s.note("runs")
				err := c.handle(ctx)
				s.note("%t", errors.Is(context.Cause(ctx), table.ErrCanceled))
				return err
			}
			s.run(nil)
			id := s.add("")
			s.until("the job to run", func() bool { return len(s.notes()) == 1 })
			s.d.Exec(t, `UPDATE example_jobs SET cancel = true WHERE id = $1`, id)
			s.until("the end", func() bool { return s.state(id) != "processing" })
			s.want("the row", c.want, `SELECT state || ' ' || num_failures FROM example_jobs WHERE id = $1`, id)
			if n := s.notes(); name != "panics" && n[1] != "true" {
				t.Errorf("the cause was not ErrCanceled: %q", n)
			}
		})
	}
}

// An error before the worker has read the cancel flag also makes the job canceled.
func TestErrorBeforeTheCancelIsSeen(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.h.Handle = func(ctx context.Context, j *table.Job[example]) error {
		s.d.Exec(t, `UPDATE example_jobs SET cancel = true WHERE id = $1`, j.ID)
		return errRefused
	}
	s.o.StalledMaxAge = time.Minute
	s.run(func(o *table.WorkerOptions) { o.HeartbeatInterval = 20 * time.Second })
	id := s.add("")
	s.becomes(id, table.StateCanceled)
	s.want("the row", "0 refused", `SELECT num_failures || ' ' || failure_message FROM example_jobs WHERE id = $1`, id)
}

// A job that is cancelled before it runs ends without a call of its handler, also if it is due
// later.
func TestCancelBeforeItRuns(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.h.Handle = func(_ context.Context, j *table.Job[example]) error { s.note("runs"); return nil }
	ids := []int64{
		s.add(`(cancel) VALUES (true)`),
		s.add(`(cancel, process_after) VALUES (true, now() + interval '1 hour')`),
		s.add(`(cancel, state, finished_at, num_failures, failure_message) VALUES (true, 'errored', now() + interval '1 hour', 1, 'the last error')`),
	}
	done := make(chan observe.JobDone, 5)
	w := s.run(func(o *table.WorkerOptions) {
		o.Observers = []observe.Observer{observe.On(func(d observe.JobDone) { done <- d })}
	})
	for _, id := range ids {
		s.becomes(id, table.StateCanceled)
		if d := <-done; d.State != string(table.StateCanceled) || !errors.Is(d.Err, table.ErrCanceled) {
			t.Errorf("reported: %+v", d)
		}
	}
	if n := s.notes(); len(n) > 0 || w.Status().Claimed > 0 {
		t.Errorf("%d handlers ran: %+v", len(n), w.Status())
	}
	s.want("the last error", "1 the last error", `SELECT num_failures || ' ' || failure_message FROM example_jobs WHERE id = $1`, ids[2])
}

// A NULL in a nullable column has the meaning of the default.
func TestNulls(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.d.Exec(t, `ALTER TABLE example_jobs ALTER num_resets DROP NOT NULL, ALTER num_failures DROP NOT NULL, ALTER cancel DROP NOT NULL, ALTER worker_hostname DROP NOT NULL`)
	s.h.Handle = func(_ context.Context, j *table.Job[example]) error {
		if j.NumFailures < 2 {
			return errRefused
		}
		return nil
	}
	s.o.StalledMaxAge = 600 * time.Millisecond
	store := table.NewStore(s.d.DB, s.o)
	errored := s.add(`(state, queued_at, finished_at, num_failures) VALUES ('errored', now() - interval '1 hour', NULL, 2)`)
	if d, err := store.MaxDurationInQueue(t.Context()); d.Round(time.Minute) != time.Hour || err != nil {
		t.Errorf("in queue for %v, %v", d, err)
	}
	s.run(nil)
	s.becomes(errored, table.StateCompleted)
	s.d.Exec(t, `DELETE FROM example_jobs`)
	id := s.add(`(num_resets, num_failures, cancel, worker_hostname, queued_at) VALUES (NULL, NULL, NULL, NULL, NULL)`)
	s.becomes(id, table.StateCompleted)
	s.want("failures", "2", `SELECT num_failures::text FROM example_jobs WHERE id = $1`, id)
	s.d.Exec(t, `UPDATE example_jobs SET state = 'processing', num_resets = NULL, last_heartbeat_at = NULL, started_at = NULL WHERE id = $1`, id)
	s.until("the reset", func() bool { return s.text(`SELECT coalesce(num_resets, 0)::text FROM example_jobs`) == "1" })
}
