package consume

import (
	"errors"
	"runtime"
	"testing"

	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

// exitingLog ends the goroutine that validates it, as FailNow of testing does.
type exitingLog struct{ store.Log }

func (exitingLog) Validate() error { runtime.Goexit(); return nil }

// If the program's code ends the goroutine of Start, WaitFor returns, and the worker has stopped.
func TestStartThatExitsReleasesWaitFor(t *testing.T) {
	t.Parallel()
	w := newWorker(nil, exitingLog{}, nil)
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = w.Start(t.Context())
	}()
	if err := w.WaitFor(t.Context(), "c", 1); !errors.Is(err, errNeverBegan) {
		t.Errorf("WaitFor: %v", err)
	}
	<-exited
	if s := w.Status().State; s != observe.StateStopped {
		t.Errorf("the worker is %s", s)
	}
	if err := w.Start(t.Context()); !errors.Is(err, ErrAlreadyStarted) {
		t.Errorf("a second Start: %v", err)
	}
}
