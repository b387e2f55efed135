package jobs

import (
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/runtime"
)

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
