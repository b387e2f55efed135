package table_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/jobs/table"
	"github.com/pgfrontier/worker/observe"
)

// A server that goes away causes no loss. Outcomes are stored when the server is back, and no
// failure is counted.
func TestConnectionsThatAreCut(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.o.StalledMaxAge = 20 * time.Second
	s.h.Handle = func(_ context.Context, j *table.Job[example]) error { time.Sleep(time.Millisecond); return nil }
	s.d.Exec(t, `INSERT INTO example_jobs (repository_id) SELECT 1 + i % 20 FROM generate_series(1, 2000) AS i`)
	db := s.d.OpenPQ(t)
	db.SetMaxIdleConns(10)
	w := s.worker(db, func(o *table.WorkerOptions) { o.NumHandlers = 20 })
	s.start(w)
	s.until("the worker to run", func() bool { return w.Status().Claimed > 0 })
	for range 6 {
		s.d.Exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
		claimed := w.Status().Claimed
		s.until("more to be claimed", func() bool { n := w.Status().Claimed; return n > claimed || n >= 2000 })
	}
	s.until("all to complete", func() bool {
		return s.text(`SELECT count(*)::text FROM example_jobs WHERE state = 'completed' AND num_failures + num_resets = 0`) == "2000"
	})
}

// Connections that die silently do not delay anything for long.
func TestConnectionsThatFallSilent(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.o.StalledMaxAge = time.Minute
	release := make(chan struct{})
	s.h.Handle = func(ctx context.Context, _ *table.Job[example]) error { s.note("runs"); <-release; return ctx.Err() }
	db, hole := s.d.OpenHole(t)
	w := s.worker(db, nil)
	table.SetLimit(w, 3*time.Second) // after which a dead connection is given up
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

// A worker that starts while the database is away waits, and reports this.
func TestStartWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.add("")
	db, back := s.d.OpenAway(t)
	reported, over := make(chan observe.StatementFailed, 100), make(chan observe.Recovered, 100)
	observers := []observe.Observer{observe.On(func(f observe.StatementFailed) { reported <- f }), observe.On(func(r observe.Recovered) { over <- r })}
	limited := s.worker(db, func(o *table.WorkerOptions) {
		o.StartLimit, o.Observers = 10*time.Millisecond, observers
	})
	if err := limited.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "gave up after 10ms: jobs/table: the database does not answer") {
		t.Errorf("with a limit: %v", err)
	}
	for len(reported) > 0 { // reported by the other worker, if its first try took less than the limit
		<-reported
	}
	s.start(s.worker(db, func(o *table.WorkerOptions) { o.Observers = observers }))
	for range 2 {
		if f := <-reported; f.Condition != observe.ConditionDatabase || !strings.Contains(f.Err.Error(), "the database does not answer") {
			t.Errorf("reported: %+v", f)
		}
	}
	back()
	s.becomes(id, table.StateCompleted)
	if r := <-over; r.Condition != observe.ConditionDatabase {
		t.Errorf("over: %+v", r)
	}
}
