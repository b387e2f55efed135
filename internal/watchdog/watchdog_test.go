package watchdog_test

import (
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/watchdog"
)

// An idle loop does not hang, however long it is idle.
func TestIteration(t *testing.T) {
	var loop watchdog.Iteration
	if d := loop.Lasts(); d != 0 {
		t.Errorf("before the first iteration it lasts %v", d)
	}
	loop.Begin()
	for begin := time.Now(); loop.Lasts() == 0; {
		if time.Since(begin) > time.Minute {
			t.Fatal("an iteration that has begun does not last")
		}
	}
	loop.End()
	if d := loop.Lasts(); d != 0 {
		t.Errorf("after its end it lasts %v", d)
	}
}

func TestHung(t *testing.T) {
	if err := watchdog.Hung("of tests", time.Minute, time.Minute); err != nil {
		t.Error(err)
	}
	if err := watchdog.Hung("of tests", 61*time.Second, time.Minute); err == nil || !strings.Contains(err.Error(), "the loop of tests has hung for 1m1s") {
		t.Error(err)
	}
}

// Moment keeps the reading of the monotonic clock, so that a change of the machine's clock makes
// no loop hang.
func TestMoment(t *testing.T) {
	var m watchdog.Moment
	if at := m.Get(); !at.IsZero() {
		t.Errorf("it is %v at first", at)
	}
	at := time.Now()
	if m.Set(at); m.Get() != at { // with the monotonic reading
		t.Errorf("it is %v, want %v", m.Get(), at)
	}
}
