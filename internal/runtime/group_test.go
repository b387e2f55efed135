package runtime_test

import (
	"errors"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/runtime"
)

var errFirst, errGoexit = errors.New("first"), errors.New("goexit")

// Wait returns the first failure when all goroutines have ended.
func TestFirstFailureEndsAll(t *testing.T) {
	for name, c := range map[string]struct {
		f    func() error
		want error
	}{
		"an error":       {func() error { return errFirst }, errFirst},
		"runtime.Goexit": {func() error { goruntime.Goexit(); return nil }, errGoexit},
	} {
		failed := make(chan struct{})
		g := &runtime.Group{Of: "test", Fail: func() { close(failed) }, Goexit: errGoexit}
		g.Run(func() error { return nil })
		g.Run(c.f)
		g.Run(func() error { <-failed; return nil })
		if err := g.Wait(time.Minute); err != c.want {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// After its limit, Wait returns an error that reports the running goroutines.
func TestWaitIsBounded(t *testing.T) {
	held := make(chan struct{})
	g := &runtime.Group{Of: "test", Fail: func() {}, Goexit: errGoexit}
	g.Run(func() error { <-held; return nil })
	if err := g.Wait(time.Millisecond); err == nil || !strings.HasPrefix(err.Error(), "test: a statement of the worker still runs 1ms") {
		t.Errorf("Wait: %v", err)
	}
	close(held)
	if err := g.Wait(time.Minute); err != nil {
		t.Errorf("Wait after the end: %v", err)
	}
}
