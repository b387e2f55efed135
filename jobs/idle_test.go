package jobs

import (
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/runtime"
)

// A peek above the floors may have missed a job that was released, and whose notification is over.
// However seldom the worker polls, a peek from the bottom follows when a low walk is due.
func TestPeekAboveTheFloorsIsRepeated(t *testing.T) {
	now := time.Now()
	l := lanes{lowTook: 2 * cheapLow, lowDue: now.Add(lowInterval)}
	if l.walkIsLow(now) {
		t.Fatal("the peek begins at the bottom")
	}
	for _, c := range []struct {
		low        bool
		poll, want time.Duration
	}{{false, time.Hour, lowInterval}, {false, time.Millisecond, time.Millisecond}, {true, time.Hour, time.Hour}} {
		if got := l.nextPeek(c.low, now.Add(c.poll)).Sub(now); got != c.want {
			t.Errorf("low %t: a peek that was due in %v comes in %v, want %v", c.low, c.poll, got, c.want)
		}
	}
	if !l.walkIsLow(l.nextPeek(false, now.Add(time.Hour))) {
		t.Error("the next peek does not begin at the bottom either")
	}
}

// A peek that took long is not repeated at once. It does not delay the next poll either.
func TestSlowPeekDelaysNoPoll(t *testing.T) {
	const poll = 100 * time.Millisecond
	for took, want := range map[time.Duration]time.Duration{
		time.Millisecond: 10 * time.Millisecond,
		time.Second:      poll,
	} {
		l := &loop{w: &Worker{env: &env{observers: &runtime.Observers{}}}, polls: jobrun.Polls{First: poll, Longest: poll}, peekedAt: time.Now().Add(time.Minute), peekTook: took}
		l.idle(t.Context(), 0)
		if got := l.pollAt.Sub(l.peekedAt); got != want {
			t.Errorf("after a peek of %v the next is due in %v, want %v", took, got, want)
		}
	}
}
