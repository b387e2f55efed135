package jobs_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/jobs"
)

// A job can be cancelled before it runs. It can be cancelled while it runs if its handler returns
// an error. If the handler returns nil, the job has completed.
func TestCancel(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(ctx context.Context, j *jobs.Job[task]) error {
		s.note("began")
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), jobs.ErrCancelled) {
			t.Errorf("the context ended with: %v", context.Cause(ctx))
		}
		if j.Args.N == 1 {
			return nil
		}
		return ctx.Err()
	})
	waits := s.add(task{}, jobs.In(time.Hour))
	obeys, ignores := s.add(task{0}), s.add(task{1})
	s.run(jobs.WithNotifyConnectionString(s.d.URL), jobs.WithHeartbeatInterval(10*time.Second), jobs.WithHeartbeatTimeout(30*time.Second))
	s.until("two jobs to run", func() bool { return len(s.notes()) == 2 })
	for id, want := range map[int64]jobs.State{waits: jobs.StateAvailable, obeys: jobs.StateRunning, ignores: jobs.StateRunning} {
		if was, err := s.Cancel(t.Context(), nil, id); err != nil || was != want {
			t.Errorf("it was %q, %v, want %q", was, err, want)
		}
	}
	for id, want := range map[int64]jobs.State{waits: jobs.StateCancelled, obeys: jobs.StateCancelled, ignores: jobs.StateCompleted} {
		if i := s.ended(id); i.State != want || i.Failures != 0 {
			t.Errorf("job %d is %s, %d failures, want %s", id, i.State, i.Failures, want)
		}
		if was, err := s.Cancel(t.Context(), nil, id); err != nil || was != want {
			t.Errorf("again: %q, %v", was, err)
		}
	}
	if _, err := s.Cancel(t.Context(), nil, 4711); !errors.Is(err, jobs.ErrNotFound) {
		t.Errorf("a job that never was: %v", err)
	}
}

// A job whose ID the history already has cannot be cancelled. The error names the remedy, and the
// job stays.
func TestCancelOfAJobWhoseIDIsTaken(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.add(task{}, jobs.In(time.Hour))
	s.d.Exec(t, `INSERT INTO jobs_history (id, kind, queue, priority, run_at, args, created_at, attempt, failures, resets, max_resets, state)
		SELECT id, 'earlier', queue, 5, now(), '{}', now(), 1, 0, 0, 5, 'completed' FROM jobs`)
	_, err := s.Cancel(t.Context(), nil, id)
	if err == nil || !strings.Contains(err.Error(), "already has a job with this id") || !strings.Contains(err.Error(), "SET id = -id WHERE id = 1)") {
		t.Errorf("while the id is taken: %v", err)
	}
	s.d.Exec(t, `UPDATE jobs_history SET id = -id`)
	if was, err := s.Cancel(t.Context(), nil, id); was != jobs.StateAvailable || err != nil {
		t.Errorf("then: %s, %v", was, err)
	}
}

// The context of a handler that runs too long ends. A handler that ignores this loses its job, but
// keeps its slot.
func TestTimeout(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	release := make(chan struct{})
	jobs.Register(s.Handlers, func(ctx context.Context, j *jobs.Job[task]) error {
		if j.Args.N == 0 {
			<-ctx.Done()
			return ctx.Err()
		}
		<-release
		return nil
	}, jobs.Timeout(20*time.Millisecond), jobs.MaxAttempts(1))
	obeys, ignores := s.add(task{0}), s.add(task{1})
	w := jobs.NewWorker(s.d.DB, s.Handlers, quick()...)
	jobs.SetGrace(w, 50*time.Millisecond)
	ended := make(chan error, 1)
	go func() { ended <- w.Start(t.Context()) }()
	for _, id := range []int64{obeys, ignores} {
		if i := s.ended(id); i.State != jobs.StateFailed || i.Code != jobs.CodeTimeout {
			t.Errorf("the job is %s, %s: %s", i.State, i.Code, i.Error)
		}
	}
	s.until("one slot to be taken", func() bool { return w.Status().Queues[0].Running == 1 })
	w.Stop()
	if err := <-ended; !errors.Is(err, jobs.ErrHandlerOverdue) {
		t.Errorf("Start returned %v", err)
	}
	var how string
	if err := s.d.DB.QueryRowContext(t.Context(), `SELECT how FROM jobs_past_workers`).Scan(&how); err != nil || how != "failed" {
		t.Errorf("the outcome is %s, %v", how, err)
	}
	close(release)
}

// A stop waits for running jobs and releases jobs that have not started. After the time-out it
// releases running jobs without counting a failure.
func TestStop(t *testing.T) {
	t.Parallel()
	for name, timeout := range map[string]time.Duration{"waits": 0, "ends": 50 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			release := make(chan struct{})
			jobs.Register(s.Handlers, func(ctx context.Context, _ *jobs.Job[task]) error {
				s.note("began")
				select {
				case <-release:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
			ids := []int64{s.add(task{0}), s.add(task{1}), s.add(task{2})}
			w, stop := s.runOn(s.d.DB, jobs.WithQueue("default", 1), jobs.WithPrefetch(2), jobs.WithShutdownTimeout(timeout))
			s.until("one to run, two to be prefetched", func() bool { return len(s.notes()) == 1 && w.Status().Queues[0].Prefetched == 2 })
			w.Stop()
			if timeout == 0 {
				s.until("the worker to drain", func() bool { return w.Status().Queues[0].Prefetched == 0 })
				close(release)
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
			for n, id := range ids {
				i, err := s.Get(t.Context(), id)
				want := jobs.StateAvailable
				if n == 0 && timeout == 0 {
					want = jobs.StateCompleted
				}
				if err != nil || i.State != want || i.Failures != 0 || i.Resets != 0 {
					t.Errorf("job %d is %s, %d failures, %d resets, %v; want %s", n, i.State, i.Failures, i.Resets, err, want)
				}
			}
		})
	}
}
