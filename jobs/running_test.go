package jobs_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/observe"
)

// Running returns each job while its handler runs, with its start, also if the handler was given
// up.
func TestRunning(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	began := make(chan struct{})
	ends := []chan struct{}{make(chan struct{}), make(chan struct{}), make(chan struct{})}
	jobs.Register(s.Handlers, func(_ context.Context, j *jobs.Job[task]) error {
		began <- struct{}{}
		<-ends[j.Args.N]
		return nil
	})
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[other]) error {
		began <- struct{}{}
		<-ends[2]
		return nil
	}, jobs.Timeout(20*time.Millisecond), jobs.MaxAttempts(1))
	w := jobs.NewWorker(s.d.DB, s.Handlers, quick()...)
	jobs.SetGrace(w, 20*time.Millisecond)
	if all := w.Running(); len(all) > 0 {
		t.Errorf("before the start %+v run", all)
	}
	ended := make(chan error, 1)
	go func() { ended <- w.Start(t.Context()) }()
	ids := []int64{s.add(task{0})}
	<-began
	ids = append(ids, s.add(task{1}))
	<-began
	ids = append(ids, s.add(other{}, jobs.Priority(9)))
	<-began
	s.until("the last one to be given up", func() bool {
		all := w.Running()
		return len(all) == 3 && all[2].Overdue
	})
	var got []int64
	last := time.Time{}
	for _, j := range w.Running() {
		if got = append(got, j.ID); j.Since.Before(last) || time.Since(j.Since) > time.Hour || j.Attempt != 1 || j.Queue != jobs.DefaultQueue {
			t.Errorf("%+v after %v", j, last)
		}
		last = j.Since
	}
	if !slices.Equal(got, ids) {
		t.Errorf("%v run, want %v", got, ids)
	}
	if q := w.Status().Queues[0]; q.Overdue != 1 || !q.OverdueSince.Equal(w.Running()[2].Since) || q.Running != 3 {
		t.Errorf("one was given up, and the status is %+v", q)
	}
	if all := w.Running(); all[0].Overdue || all[1].Overdue || all[2].Priority != 9 {
		t.Errorf("%+v", all)
	}
	close(ends[1])
	s.until("one to have ended", func() bool { return len(w.Running()) == 2 })
	close(ends[0])
	close(ends[2])
	s.until("all to have ended", func() bool { return len(w.Running()) == 0 })
	if q := w.Status().Queues[0]; q.Overdue != 0 || !q.OverdueSince.IsZero() {
		t.Errorf("all have returned, and the status is %+v", q)
	}
	w.Stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// While handlers that were given up hold all slots of a queue, the worker is not ready. What such a
// handler returns is reported.
func TestReadyWithoutSlots(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	release := make(chan struct{})
	late := errors.New("too late")
	jobs.Register(s.Handlers, func(_ context.Context, j *jobs.Job[task]) error {
		if j.Args.N == 0 {
			return nil
		}
		<-release
		return late
	}, jobs.Timeout(20*time.Millisecond), jobs.MaxAttempts(1))
	returned := make(chan observe.JobReturned, 1)
	w := jobs.NewWorker(s.d.DB, s.Handlers, append(quick(), jobs.WithQueue("default", 1), jobs.WithObserver(observe.On(func(r observe.JobReturned) { returned <- r })))...)
	jobs.SetGrace(w, 20*time.Millisecond)
	ended := make(chan error, 1)
	go func() { ended <- w.Start(t.Context()) }()
	s.ended(s.add(task{0}))
	if all := w.Ready(t.Context(), 0); len(all) > 0 {
		t.Errorf("with its slot it is not ready: %v", all)
	}
	id := s.add(task{1})
	s.until("the slot to be lost", func() bool { return w.Status().Queues[0].Overdue == 1 })
	if all := w.Ready(t.Context(), 0); len(all) != 1 || !strings.Contains(all[0].Error(), `given up keep all 1 slots of queue "default"`) {
		t.Errorf("without a slot: %v", all)
	}
	close(release)
	if r := <-returned; r.ID != id || !errors.Is(r.Err, late) || r.Took < 20*time.Millisecond {
		t.Errorf("returned: %+v", r)
	}
	s.until("the slot to be free", func() bool { return len(w.Ready(t.Context(), 0)) == 0 })
	w.Stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
