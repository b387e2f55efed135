package jobs_test

import (
	"context"
	"testing"
	"time"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/observe"
)

// strayed inserts a job that the database says the worker runs, and that the worker does not know.
func (s *stage) strayed(w *jobs.Worker) (id int64) {
	s.t.Helper()
	id = s.add(task{}, jobs.In(time.Hour))
	s.d.Exec(s.t, `UPDATE jobs SET state = 'running', attempt = 1, claim = 7, claimed_by = $1::uuid, claimed_at = now(), started_at = now() WHERE id = $2`, w.ID().String(), id)
	return id
}

// A worker adopts and runs a job that the database says it runs, under the claim in the row. It
// does so even with no other job in flight.
func TestLostClaimIsAdopted(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	w := s.run()
	s.ended(s.add(task{}))
	if i := s.ended(s.strayed(w)); i.State != jobs.StateCompleted || i.Attempt != 1 || i.Resets != 0 {
		t.Errorf("the job is %s after %d attempts, %d resets: %+v", i.State, i.Attempt, i.Resets, i.Attempts)
	}
}

// A worker that stops releases an adopted job, and ends.
func TestAdoptedJobIsReleasedAtAStop(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	release := make(chan struct{})
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error {
		s.note("began")
		<-release
		return nil
	})
	s.add(task{})
	w, stop := s.runOn(s.d.DB)
	s.until("the job to run", func() bool { return len(s.notes()) == 1 })
	w.Stop()
	s.until("the worker to drain", func() bool { return w.Status().State == observe.StateDraining })
	id := s.strayed(w)
	s.until("the job to be given back", func() bool {
		i, err := s.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return i.State == jobs.StateAvailable
	})
	close(release)
	if err := stop(); err != nil {
		t.Error(err)
	}
}
