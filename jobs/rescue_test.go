package jobs_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/observe"
)

// The jobs of a dead worker run again on another worker. Jobs that had started count a reset, jobs
// that were only claimed do not. If the worker comes back, its handlers lose their context, and
// their results have no effect.
func TestDeadWorker(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	db, line := s.openLine(t)
	var first atomic.Bool
	first.Store(true)
	lost := make(chan error, 3)
	jobs.Register(s.Handlers, func(ctx context.Context, j *jobs.Job[task]) error {
		if first.Load() {
			s.note("began")
			<-ctx.Done()
			lost <- context.Cause(ctx)
			return nil // nil would complete the job
		}
		return j.SetResult("second")
	}, jobs.Timeout(0))
	var ids []int64
	for n := range 5 {
		ids = append(ids, s.add(task{n}))
	}
	one, _ := s.runOn(db, jobs.WithQueue("default", 3), jobs.WithPrefetch(2))
	s.until("three jobs to run and two to be prefetched", func() bool {
		q := one.Status().Queues[0]
		return len(s.notes()) == 3 && q.Prefetched == 2
	})
	first.Store(false)
	var resets atomic.Int64
	s.run(jobs.WithObserver(observe.On(func(r observe.JobsReset) { resets.Add(int64(r.Back)) })))
	line.cut()
	for n, id := range ids {
		i := s.ended(id)
		blamed := 0
		if n < 3 {
			blamed = 1
		}
		if i.State != jobs.StateCompleted || string(i.Result) != `"second"` || i.Failures != 0 || i.Resets != blamed {
			t.Errorf("job %d: %s, result %s, %d failures, %d resets, want %d", n, i.State, i.Result, i.Failures, i.Resets, blamed)
		}
	}
	if resets.Load() != 5 {
		t.Errorf("%d jobs were reported as reset", resets.Load())
	}
	line.mend()
	for range 3 {
		select {
		case err := <-lost:
			if !errors.Is(err, jobs.ErrClaimLost) {
				t.Errorf("the old handler's context ended with: %v", err)
			}
		case <-time.After(patience):
			t.Fatalf("an old handler lost no context; %+v", one.Status())
		}
	}
	s.until("the lost jobs to leave the worker", func() bool { q := one.Status().Queues[0]; return q.Lost == 5 && q.Running == 0 })
}

// A job that kills its worker each time fails in the end.
func TestJobThatKillsWorkersFails(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(ctx context.Context, _ *jobs.Job[task]) error {
		s.note("began")
		<-ctx.Done()
		return nil
	}, jobs.Timeout(0))
	id := s.add(task{}, jobs.MaxResets(0))
	db, line := s.openLine(t)
	s.runOn(db)
	s.until("the job to run", func() bool { return len(s.notes()) == 1 })
	s.run()
	line.cut()
	if i := s.ended(id); i.State != jobs.StateFailed || i.Code != jobs.CodeLost {
		t.Errorf("the job is %s, %s: %s", i.State, i.Code, i.Error)
	}
	line.mend()
}

// A worker that leads again has forgotten the dead workers, and checks for their jobs at once.
func TestNewLeaderChecksForLostJobs(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	w := jobs.NewWorker(s.d.DB, s.Handlers, append(quick(), jobs.WithLeaderStrategy(jobs.LeaderStrategyLease))...)
	jobs.SetMaintenance(w, time.Hour)
	s.d.Exec(t, `INSERT INTO jobs_once (key, job_id, hash, expires_at) VALUES ('old', 1, 'h', now() - interval '1 hour')`)
	ended := make(chan error, 1)
	go func() { ended <- w.Start(context.WithoutCancel(t.Context())) }()
	t.Cleanup(func() {
		w.Stop()
		if err := <-ended; err != nil {
			t.Errorf("the worker ended with: %v", err)
		}
	})
	s.until("the leader to do its maintenance", func() bool {
		var left int
		err := s.d.DB.QueryRow(`SELECT count(*) FROM jobs_once`).Scan(&left)
		return err == nil && left == 0
	})
	s.d.Exec(t, `UPDATE jobs_leader SET worker_id = gen_random_uuid(), term = term + 1, expires_at = clock_timestamp() + interval '2 seconds'`)
	s.until("the worker to lose leadership", func() bool { return !w.Status().Leader })
	lost := func() int64 {
		id := s.add(task{}, jobs.In(time.Hour))
		s.d.Exec(t, `UPDATE jobs SET state = 'running', attempt = 1, claim = 1, claimed_by = gen_random_uuid(), claimed_at = now(), started_at = now() WHERE id = $1`, id)
		return id
	}
	if i := s.ended(lost()); i.Resets != 1 {
		t.Errorf("the job has %d resets, want one", i.Resets)
	}
	// The leadership was lost and regained between two checks of maintenance.
	id := lost()
	jobs.ForgetDead(w)
	if i := s.ended(id); i.Resets != 1 {
		t.Errorf("the second job has %d resets, want one", i.Resets)
	}
}

// Maintenance that waits for a lock or a connection delays no rescue.
func TestMaintenanceDelaysNoRescue(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	db, line := s.openLine(t)
	var runs atomic.Int64
	jobs.Register(s.Handlers, func(ctx context.Context, _ *jobs.Job[task]) error {
		if runs.Add(1) == 1 {
			<-ctx.Done()
		}
		return ctx.Err()
	}, jobs.Timeout(0))
	id := s.add(task{})
	s.runOn(db)
	s.until("the job to run", func() bool { return runs.Load() == 1 })
	lock, err := s.d.DB.BeginTx(context.WithoutCancel(t.Context()), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Rollback() })
	if _, err := lock.Exec(`LOCK TABLE jobs_once`); err != nil {
		t.Fatal(err)
	}
	line.cut()
	w := jobs.NewWorker(s.d.DB, s.Handlers, quick()...)
	jobs.SetLimit(w, time.Hour)
	ended := make(chan error, 1)
	go func() { ended <- w.Start(context.WithoutCancel(t.Context())) }()
	t.Cleanup(func() {
		_ = lock.Rollback()
		w.Stop()
		if err := <-ended; err != nil {
			t.Errorf("the worker ended with: %v", err)
		}
		line.mend()
	})
	s.until("maintenance to wait for the lock", func() (waits bool) {
		err := s.d.DB.QueryRow(`SELECT EXISTS (SELECT FROM pg_locks WHERE ` + pgtest.Here + ` AND relation = 'jobs_once'::regclass AND NOT granted)`).Scan(&waits)
		return err == nil && waits
	})
	if i := s.ended(id); i.State != jobs.StateCompleted || i.Resets != 1 {
		t.Errorf("the job is %s after %d resets, want it completed after one", i.State, i.Resets)
	}
}

// A worker's last heartbeat lies in the future, as after the server's clock was set back. Its jobs
// run again after its HeartbeatTimeout.
func TestDeadWorkerWithAHeartbeatInTheFuture(t *testing.T) {
	t.Parallel()
	for name, strategy := range map[string]jobs.LeaderStrategy{"advisory": jobs.LeaderStrategyAdvisory, "lease": jobs.LeaderStrategyLease} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
			gone := uuid.NewString()
			s.d.Exec(t, `INSERT INTO jobs_workers (worker_id, heartbeat_at, heartbeat_interval, heartbeat_timeout, kinds, protocol) VALUES ($1, clock_timestamp() + interval '1 day', '1 s', '2 s', '{task}', 1)`, gone)
			id := s.add(task{1})
			s.d.Exec(t, `UPDATE jobs SET state = 'running', claim = 7, claimed_by = $1, claimed_at = now(), started_at = now(), attempt = 1`, gone)
			s.run(jobs.WithLeaderStrategy(strategy))
			if i := s.ended(id); i.State != jobs.StateCompleted || i.Resets != 1 {
				t.Errorf("the job is %s after %d resets", i.State, i.Resets)
			}
		})
	}
}
