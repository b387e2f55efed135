package jobs_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/observe"
)

// A worker that starts while the database is away waits, and reports this.
func TestStartWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	id := s.add(task{1})
	db, back := s.d.OpenAway(t)
	reported := make(chan observe.TaskFailed, 100)
	opts := append(quick(), jobs.WithObserver(observe.On(func(f observe.TaskFailed) { reported <- f })))
	limited := jobs.NewWorker(db, s.Handlers, append(opts, jobs.WithStartLimit(10*time.Millisecond))...)
	if err := limited.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "gave up after 10ms: jobs: the database does not answer") {
		t.Errorf("with a limit: %v", err)
	}
	for len(reported) > 0 { // reported by the other worker, if its first try took less than the limit
		<-reported
	}
	s.runOn(db, opts...)
	for range 2 {
		if f := <-reported; f.Task != "start" || !strings.Contains(f.Err.Error(), "the database does not answer") {
			t.Errorf("reported: %+v", f)
		}
	}
	back()
	if i := s.ended(id); i.State != jobs.StateCompleted {
		t.Errorf("the job is %s: %s", i.State, i.Error)
	}
}
