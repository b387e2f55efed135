package jobs_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/observe"
)

// If the listening connection leads to another database, the worker reports it once, and polls. If
// it leads to the right database, the worker reports nothing.
func TestNotificationsFromAnotherDatabase(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	listens := func(name, to string) *jobs.Worker {
		w := jobs.NewWorker(s.d.DB, s.Handlers, append(quick(), jobs.WithNotifyConnectionString(to),
			jobs.WithObserver(observe.On(func(e observe.NotifyFailed) { err := e.Err; s.note("%s: %v", name, err) })))...)
		jobs.SetEchoes(w, 200*time.Millisecond)
		result := make(chan error, 1)
		go func() { result <- w.Start(context.WithoutCancel(t.Context())) }()
		t.Cleanup(func() {
			w.Stop()
			if err := <-result; err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
		return w
	}
	right, wrong := listens("right", s.d.URL), listens("wrong", pgtest.Empty(t).URL)
	s.until("the wrong database to be reported", func() bool { return wrong.Status().NotifyError != nil })
	if err := wrong.Status().NotifyError; !strings.Contains(err.Error(), "leads to another server or database") {
		t.Errorf("reported was %v", err)
	}
	if err := right.Status().NotifyError; err != nil {
		t.Errorf("the right one: %v", err)
	}
	if i := s.ended(s.add(task{})); i.State != jobs.StateCompleted {
		t.Errorf("a job is %s", i.State)
	}
	if all := s.notes(); len(all) != 1 || !strings.HasPrefix(all[0], "wrong: ") {
		t.Errorf("reported was %q", all)
	}
}
