package jobs_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/store"
)

// workerGoroutines returns the stacks of goroutines that run code of package jobs or of the
// packages it uses.
func workerGoroutines() (all []string) {
	buf := make([]byte, 1<<22)
	buf = buf[:runtime.Stack(buf, true)]
	for _, stack := range strings.Split(string(buf), "\n\n")[1:] {
		if strings.Contains(stack, "testing.(*T).Parallel(") {
			continue // a parallel test that waits for its turn
		}
		if strings.Contains(stack, "pgfrontier/worker/jobs.") || strings.Contains(stack, "worker/coord.") || strings.Contains(stack, "internal/listen.") {
			all = append(all, stack)
		}
	}
	return all
}

// expectNothingInUse waits until no goroutine of a worker and no session of the pool is in use.
func (s *stage) expectNothingInUse(t *testing.T, what string, db *sql.DB) {
	t.Helper()
	pgtest.Poll(func() bool { return len(workerGoroutines()) == 0 })
	if left := workerGoroutines(); len(left) > 0 {
		t.Errorf("%s: %d goroutines are left:\n%s", what, len(left), strings.Join(left, "\n\n"))
	}
	pgtest.AwaitUnused(t, db)
	// The connection is closed, and the server notices after a moment.
	s.until(what+": the listening session to end", func() bool {
		var listening int
		if err := s.d.DB.QueryRow(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query ILIKE 'listen%'`).Scan(&listening); err != nil {
			t.Fatal(err)
		}
		return listening == 0
	})
}

// After Start has returned for any reason, nothing of the worker is left. After Wait has returned,
// nothing of the client is left.
func TestNothingIsLeftAfterStart(t *testing.T) {
	s := newStage(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	db := s.d.OpenPQ(t)
	notify := jobs.WithNotifyConnectionString(s.d.URL)

	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		w := jobs.NewWorker(db, s.Handlers, append(quick(), notify)...)
		result := make(chan error, 1)
		go func() { result <- w.Start(ctx) }()
		s.ended(s.add(task{}))
		cancel()
		if err := <-result; err != nil {
			t.Error(err)
		}
		s.expectNothingInUse(t, "a stop", db)
		var rows int
		if err := s.d.DB.QueryRow(`SELECT count(*) FROM jobs_workers`).Scan(&rows); err != nil || rows > 0 {
			t.Errorf("%d rows of workers, %v", rows, err)
		}
	}

	early := jobs.NewWorker(db, s.Handlers, notify)
	early.Stop()
	if err := early.Start(t.Context()); err != nil {
		t.Errorf("a worker that was stopped before: %v", err)
	}
	s.expectNothingInUse(t, "a stop before the start", db)

	nowhere, err := sql.Open("pgx", "host=127.0.0.1 port=1 sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer nowhere.Close()
	closed := s.d.OpenPQ(t)
	_ = closed.Close()
	for name, w := range map[string]*jobs.Worker{
		"invalid":      jobs.NewWorker(db, nil, notify),
		"no server":    jobs.NewWorker(nowhere, s.Handlers, notify, jobs.WithStartLimit(10*time.Millisecond)),
		"a closed db":  jobs.NewWorker(closed, s.Handlers, notify),
		"no tables":    jobs.NewWorker(db, s.Handlers, jobs.WithNames(store.Names{Jobs: "missing"}), notify),
		"no listening": jobs.NewWorker(db, s.Handlers, jobs.WithNotifyConnectionString("host=127.0.0.1 port=1 sslmode=disable"), jobs.WithStopAfter(100*time.Millisecond)),
	} {
		if err := w.Start(t.Context()); (err == nil) != (name == "no listening") {
			t.Errorf("%s: Start returned %v", name, err)
		}
		s.expectNothingInUse(t, name, db)
	}

	clients := []*jobs.Client{jobs.NewClient(db), jobs.NewClient(db, jobs.WithNotifyConnectionString(s.d.URL))}
	for i, c := range clients {
		id := s.add(task{})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if _, err := jobs.Wait[int](ctx, c, id); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("waiting for a job that no worker runs: %v", err)
		}
		cancel()
		s.expectNothingInUse(t, fmt.Sprint("client ", i), db)
	}
	_, stop := s.runOn(db)
	for i, c := range clients {
		results := make(chan error, 20)
		for range cap(results) {
			go func() {
				e, err := c.Enqueue(t.Context(), nil, task{})
				if err == nil {
					_, err = jobs.Wait[int](t.Context(), c, e.ID)
				}
				results <- err
			}()
		}
		for range cap(results) {
			if err := <-results; err != nil {
				t.Errorf("client %d: %v", i, err)
			}
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	s.expectNothingInUse(t, "Wait", db)
}
