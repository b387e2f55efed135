package jobs_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/ops"
)

// Finished jobs are removed after their time, with their attempts and logs. What an
// operator has set for a queue comes first.
func TestRetention(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	o, err := ops.NewJobs(s.d.DB, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.SetRetention(t.Context(), "kept", ops.Forever, somebody); err != nil {
		t.Fatal(err)
	}
	jobs.Register(s.Handlers, func(ctx context.Context, j *jobs.Job[task]) error {
		if err := j.Log(ctx, "an entry"); err != nil {
			return err
		}
		if j.Attempt == 1 {
			return jobs.RetryAfter(0, errors.New("once"))
		}
		return nil
	})
	kept, gone := s.add(task{}, jobs.Queue("kept")), s.add(task{})
	s.run(jobs.WithQueue("kept", 1), jobs.WithQueue("default", 1), jobs.WithRetention(time.Second))
	s.until("the job to be removed", func() bool {
		_, err := s.Get(t.Context(), gone)
		return errors.Is(err, jobs.ErrNotFound)
	})
	if i, err := s.Get(t.Context(), kept); err != nil || i.State != jobs.StateCompleted || len(i.Attempts) != 1 {
		t.Errorf("the kept job is %+v, %v", i, err)
	}
	var left int
	if err := s.d.DB.QueryRow(`SELECT (SELECT count(*) FROM jobs_attempts WHERE job_id = $1) + (SELECT count(*) FROM jobs_logs WHERE job_id = $1)`, gone).Scan(&left); err != nil || left != 0 {
		t.Errorf("%d attempts and entries are left, %v", left, err)
	}
}

// Jobs of a worker whose row is gone run again: nobody else would know of it.
func TestWorkerWithoutRow(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	id := s.add(task{}, jobs.In(time.Hour))
	s.d.Exec(t, `UPDATE jobs SET state = 'running', attempt = 1, claim = 7, claimed_by = $1::uuid, claimed_at = now(), started_at = now()`, uuid.NewString())
	s.run()
	if i := s.ended(id); i.State != jobs.StateCompleted || i.Resets != 1 {
		t.Errorf("the job is %s after %d resets", i.State, i.Resets)
	}
}

// A worker whose row somebody has removed registers again, and claims nothing
// before: its jobs could not be rescued.
func TestRowRemoved(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	w := s.run()
	s.ended(s.add(task{}))
	s.d.Exec(t, `DELETE FROM jobs_workers`)
	if i := s.ended(s.add(task{})); i.State != jobs.StateCompleted {
		t.Errorf("the job is %s", i.State)
	}
	var there bool
	if err := s.d.DB.QueryRow(`SELECT EXISTS (SELECT FROM jobs_workers WHERE worker_id = $1)`, w.ID()).Scan(&there); err != nil || !there {
		t.Errorf("the worker has a row: %v, %v", there, err)
	}
}
