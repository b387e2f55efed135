package jobs_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// task are the arguments of most tests.
type task struct{ N int }

func (task) Kind() string { return "task" }

// stage is a database with the tables of jobs.
type stage struct {
	*jobs.Client
	*jobs.Handlers
	t *testing.T
	d *pgtest.Database

	mu   sync.Mutex
	seen []string
}

func newStage(t *testing.T) *stage {
	t.Helper()
	d := pgtest.Jobs(t)
	d.DB.SetMaxIdleConns(20)
	return &stage{Client: jobs.NewClient(d.DB), Handlers: jobs.NewHandlers(), t: t, d: d}
}

// note records an event of the test.
func (s *stage) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, fmt.Sprintf(format, args...))
}

// notes returns the recorded events so far.
func (s *stage) notes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// patience bounds every wait of a test.
const patience = pgtest.Patience

// until waits for a condition.
func (s *stage) until(what string, is func() bool) {
	s.t.Helper()
	if !pgtest.Poll(is) {
		s.t.Fatalf("waited in vain for %s; noted: %q", what, s.notes())
	}
}

// add enqueues a job, and returns its ID.
func (s *stage) add(args jobs.Args, opts ...jobs.EnqueueOption) int64 {
	s.t.Helper()
	e, err := s.Enqueue(s.t.Context(), nil, args, opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	return e.ID
}

// quick returns options with short intervals.
func quick() []jobs.Option {
	return []jobs.Option{jobs.WithPollInterval(50 * time.Millisecond), jobs.WithHeartbeatInterval(200 * time.Millisecond),
		jobs.WithHeartbeatTimeout(30 * time.Second), jobs.WithRescueDelay(300 * time.Millisecond)}
}

// run starts a worker, which ends with the test, and returns the worker.
func (s *stage) run(opts ...jobs.Option) *jobs.Worker {
	s.t.Helper()
	w, _ := s.runOn(s.d.DB, opts...)
	return w
}

// runOn starts a worker on a pool. stop ends the worker and returns the error of Start.
func (s *stage) runOn(db *sql.DB, opts ...jobs.Option) (w *jobs.Worker, stop func() error) {
	s.t.Helper()
	w = jobs.NewWorker(db, s.Handlers, append(quick(), opts...)...)
	jobs.SetMaintenance(w, 100*time.Millisecond)
	result := make(chan error, 1)
	go func() {
		err := w.Start(context.WithoutCancel(s.t.Context()))
		if err != nil {
			s.note("the worker ended with: %v", err)
		}
		result <- err
	}()
	stop = sync.OnceValue(func() error {
		w.Stop()
		select {
		case err := <-result:
			return err
		case <-time.After(patience):
			return fmt.Errorf("the worker does not stop: %+v", w.Status())
		}
	})
	s.t.Cleanup(func() {
		if err := stop(); err != nil {
			s.t.Errorf("the worker ended with: %v", err)
		}
	})
	return w, stop
}

// ended waits until a job has finished.
func (s *stage) ended(id int64) (i jobs.Info) {
	s.t.Helper()
	if !pgtest.PollLasting(func() bool {
		var err error
		if i, err = s.Get(s.t.Context(), id); err != nil {
			s.t.Fatal(err)
		}
		return i.State.Finished()
	}) {
		s.t.Fatalf("waited in vain for the end of job %d; noted: %q", id, s.notes())
	}
	return i
}

// with returns the stage for a subtest that shares the database and the worker. The subtest has
// notes of its own.
func (s *stage) with(t *testing.T) *stage {
	return &stage{Client: s.Client, Handlers: s.Handlers, t: t, d: s.d}
}

// noted counts the notes with a text.
func (s *stage) noted(format string, args ...any) (n int) {
	text := fmt.Sprintf(format, args...)
	for _, note := range s.notes() {
		if note == text {
			n++
		}
	}
	return n
}
