package jobs_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/observe"
)

// A worker whose pool is closed ends, and returns ErrPoolClosed. It ends the contexts of its
// handlers, and gives up its jobs and the leadership.
func TestAPoolThatIsClosedUnderTheWorker(t *testing.T) {
	t.Parallel()
	for name, idle := range map[string]bool{"with a job that runs": false, "idle": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			jobs.Register(s.Handlers, func(ctx context.Context, j *jobs.Job[task]) error {
				s.note("begins")
				if j.Attempt > 1 {
					return nil
				}
				<-ctx.Done()
				s.note("ends: %v", context.Cause(ctx))
				return ctx.Err()
			})
			pool, err := sql.Open("pgx", s.d.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			first := jobs.NewWorker(pool, s.Handlers, quick()...)
			result := make(chan error, 1)
			go func() { result <- first.Start(context.WithoutCancel(t.Context())) }()
			s.until("the first worker to lead", func() bool { return first.Status().Leader })
			var id int64
			if !idle {
				id = s.add(task{1})
				s.until("its job to run", func() bool { return len(s.notes()) > 0 })
			}
			second := s.run()
			s.until("the second worker to run", func() bool { return second.Status().State == observe.StateRunning })
			if err := pool.Close(); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-result:
				if !errors.Is(err, jobs.ErrPoolClosed) {
					t.Errorf("Start returned %v", err)
				}
			case <-time.After(patience):
				first.Stop()
				t.Fatal("the worker goes on without its pool")
			}
			s.until("the second worker to lead", func() bool { return second.Status().Leader })
			if idle {
				return
			}
			if i := s.ended(id); i.State != jobs.StateCompleted || i.Resets != 1 {
				t.Errorf("the job is %s after %d resets", i.State, i.Resets)
			}
			if want := "ends: " + jobs.ErrPoolClosed.Error(); !slices.Contains(s.notes(), want) {
				t.Errorf("the first handler's context has not ended with %q: %q", want, s.notes())
			}
		})
	}
}
