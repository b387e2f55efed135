package turn_test

import (
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/turn"
)

// A loop that rests does not hang, however long it does so.
func TestTurn(t *testing.T) {
	var loop turn.Turn
	if d := loop.Lasts(); d != 0 {
		t.Errorf("before the first turn it lasts %v", d)
	}
	loop.Begin()
	for begin := time.Now(); loop.Lasts() == 0; {
		if time.Since(begin) > time.Minute {
			t.Fatal("a turn that has begun does not last")
		}
	}
	loop.End()
	if d := loop.Lasts(); d != 0 {
		t.Errorf("after its end it lasts %v", d)
	}
}

func TestHung(t *testing.T) {
	if err := turn.Hung("of tests", time.Minute, time.Minute); err != nil {
		t.Error(err)
	}
	if err := turn.Hung("of tests", 61*time.Second, time.Minute); err == nil || !strings.Contains(err.Error(), "the loop of tests has hung for 1m1s") {
		t.Error(err)
	}
}

// What a loop began at is told by the monotonic clock: a machine's clock that is set makes no
// loop hang.
func TestMoment(t *testing.T) {
	var m turn.Moment
	if at := m.Get(); !at.IsZero() {
		t.Errorf("it is %v at first", at)
	}
	at := time.Now()
	if m.Set(at); m.Get() != at { // with the monotonic reading
		t.Errorf("it is %v, want %v", m.Get(), at)
	}
}
