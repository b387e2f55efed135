package jobs_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/ops"
)

// A stop waits for the outcome of a job while its RetryPolicy runs.
func TestStopWaitsForRetryPolicy(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	asked, release := make(chan struct{}), make(chan struct{})
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return errors.New("boom") },
		jobs.Retry(func(int, error) time.Duration {
			close(asked)
			<-release
			return time.Hour
		}))
	id := s.add(task{1})
	w, stop := s.runOn(s.d.DB)
	<-asked
	if n := w.Status().Unsettled; n != 1 {
		t.Errorf("%d outcomes are not stored, want 1", n)
	}
	w.Stop()
	close(release)
	if err := stop(); err != nil {
		t.Error(err)
	}
	if i, err := s.Get(t.Context(), id); err != nil || i.State != jobs.StateAvailable || i.Failures != 1 {
		t.Errorf("the job is %s after %d failures, %v", i.State, i.Failures, err)
	}
}

// A drained worker claims no more jobs, finishes the job in flight, and stays until the program
// stops it.
func TestDrainWorker(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	begun, release := make(chan struct{}, 1), make(chan struct{})
	jobs.Register(s.Handlers, func(_ context.Context, j *jobs.Job[task]) error {
		if j.Args.N == 1 {
			begun <- struct{}{}
			<-release
		}
		return nil
	})
	running := s.add(task{1})
	w, stop := s.runOn(s.d.DB, jobs.WithShutdownTimeout(0), jobs.WithPollInterval(time.Minute)) // no claim is under way when the worker drains
	<-begun
	o, err := ops.NewJobs(s.d.DB)
	if err != nil {
		t.Fatal(err)
	}
	by := ops.By{Operator: "op", Reason: "the node goes"}
	if err := o.DrainWorker(t.Context(), w.ID(), by); err != nil {
		t.Fatal(err)
	}
	if err := o.DrainWorker(t.Context(), w.ID(), by); !errors.Is(err, ops.ErrUnchanged) {
		t.Errorf("once more: %v", err)
	}
	if all, err := o.Workers(t.Context()); err != nil || len(all) != 1 || all[0].ID != w.ID() || all[0].DrainRequested.IsZero() || len(all[0].Able) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
	s.until("the worker to drain", func() bool { return w.Status().State == observe.StateDraining })
	left := s.add(task{2})
	close(release)
	s.until("the worker to be drained", func() bool { return w.Status().State == observe.StateDrained })
	if i := s.ended(running); i.State != jobs.StateCompleted {
		t.Errorf("the job in flight is %s", i.State)
	}
	if i, err := s.Get(t.Context(), left); err != nil || i.State != jobs.StateAvailable {
		t.Errorf("the job that came later is %s, %v", i.State, err)
	}
	jobs.SetHangsAfter(w, -time.Hour) // a running loop would count as hanging: all have ended
	if err := w.Live(); err != nil {
		t.Errorf("a drained worker is not live: %v", err)
	}
	if len(w.Ready(t.Context(), time.Hour)) != 1 {
		t.Error("a drained worker is ready")
	}
	if err := o.DrainWorker(t.Context(), w.ID(), by); !errors.Is(err, ops.ErrNotFound) {
		t.Errorf("of one that has left: %v", err)
	}
	if all, err := o.StoppedWorkers(t.Context()); err != nil || len(all) != 1 || all[0].ID != w.ID() || all[0].How != "drained" || all[0].StartedAt.IsZero() {
		t.Errorf("reported as stopped: %+v, %v", all, err)
	}
	if err := stop(); err != nil || w.Status().State != observe.StateStopped {
		t.Errorf("Start: %v, state %s", err, w.Status().State)
	}
	all, err := o.Operations(t.Context(), ops.OperationFilter{}, 10)
	if err != nil || len(all) != 1 || all[0].Kind != ops.KindDrain || all[0].By != by || string(all[0].Detail) != `{"worker": "`+w.ID().String()+`"}` {
		t.Errorf("recorded: %+v, %v", all, err)
	}
}
