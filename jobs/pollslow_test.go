package jobs_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/sim/network"
)

// wanted waits until a worker has requested notifications of new jobs, and sleeps.
func (s *stage) wanted() {
	s.t.Helper()
	s.until("the worker to ask to be reported", func() (is bool) {
		err := s.d.DB.QueryRow(`SELECT EXISTS (SELECT FROM jobs_wanted WHERE until > clock_timestamp())`).Scan(&is)
		return err == nil && is
	})
}

// A worker that listens polls once an hour, and starts every due job. The jobs are new, due later,
// retried, snoozed, released by another worker, or of a dead worker.
func TestNotifiedOfEveryDueJob(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	left := make(chan struct{})
	jobs.Register(s.Handlers, func(ctx context.Context, j *jobs.Job[task]) error {
		s.note("%d.%d", j.Args.N, j.Attempt)
		switch {
		case j.Attempt > 1:
			return nil
		case j.Args.N == 3:
			return jobs.RetryAfter(300*time.Millisecond, fmt.Errorf("again"))
		case j.Args.N == 4:
			return jobs.Snooze(300 * time.Millisecond)
		case j.Args.N == 5:
			close(left)
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	_, stop := s.runOn(s.d.DB, jobs.WithShutdownTimeout(10*time.Millisecond))
	held := s.add(task{5})
	select {
	case <-left:
	case <-time.After(patience):
		t.Fatal("the first worker starts no job")
	}
	seldom := []jobs.Option{jobs.WithNotifyConnectionString(s.d.URL), jobs.WithPollInterval(time.Hour)}
	s.run(seldom...)
	s.wanted()
	if err := stop(); err != nil { // releases its job
		t.Fatal(err)
	}
	s.ended(held)
	for n, opts := range map[int][]jobs.EnqueueOption{1: nil, 2: {jobs.In(500 * time.Millisecond)}, 3: nil, 4: nil} {
		s.ended(s.add(task{n}, opts...))
		s.wanted()
	}
	var lost int64
	if err := s.d.DB.QueryRow(`INSERT INTO jobs (kind, args, state, attempt, claimed_by, claim, claimed_at, started_at)
		VALUES ('task', '{"N": 6}', 'running', 1, gen_random_uuid(), 1, clock_timestamp(), clock_timestamp()) RETURNING id`).Scan(&lost); err != nil {
		t.Fatal(err)
	}
	if i := s.ended(lost); i.Resets != 1 {
		t.Errorf("the job of a dead worker was reset %d times", i.Resets)
	}
}

// An idle worker renews its request for notifications, which lasts for half a minute.
func TestIdleWorkerRenewsItsNotifyRequest(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	s.run(jobs.WithNotifyConnectionString(s.d.URL), jobs.WithPollInterval(time.Hour))
	s.ended(s.add(task{}))
	s.wanted()
	for range 2 { // the first request may come from the new connection
		s.d.Exec(t, `DELETE FROM jobs_wanted`)
		s.wanted()
	}
	s.ended(s.add(task{}))
}

// A worker that polls once an hour, and whose peeks are slow, finds jobs that become visible below
// its floors. Their notification leads to a claim above the floors, which does not find the job. A
// walk from the bottom follows.
func TestJobsBelowTheFloorsWaitForNoPoll(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	config, err := pgx.ParseConfig(s.d.URL)
	if err != nil {
		t.Fatal(err)
	}
	far := network.New(rand.New(rand.NewPCG(1, 1)))
	far.Carry(config)
	far.Remove(40 * time.Millisecond)
	db := stdlib.OpenDB(*config)
	t.Cleanup(func() { _ = db.Close() })
	s.runOn(db, jobs.WithNotifyConnectionString(s.d.URL), jobs.WithPollInterval(time.Hour))
	s.wanted()
	for n := range 3 {
		s.ended(s.add(task{}, jobs.At(time.Now().Add(-time.Duration(n)*time.Minute)))) // due before the last one
	}
}
