// Package wakeup ends pauses early, with a minimum distance.
package wakeup

import (
	"context"
	"time"
)

// apart is the minimum time between two pauses that wakeups end. Workers that start together
// notify each other. Limited to one wakeup per 50 ms, n workers cost O(n) reads, not O(n²).
const apart = 50 * time.Millisecond

// Signal wakes one goroutine.
type Signal struct {
	c       chan struct{}
	handled time.Time // when a wakeup last ended a pause
}

// New returns a Signal that was not sent.
func New() *Signal { return &Signal{c: make(chan struct{}, 1)} }

// Send ends the current pause of the sleeper, or the next one if nobody sleeps. It never
// blocks. Several calls before the sleeper wakes count as one.
func (s *Signal) Send() {
	select {
	case s.c <- struct{}{}:
	default:
	}
}

// Sleep waits for d or for Send. woken reports whether Send ended the pause. ok is false if ctx
// ended it. Only one goroutine may sleep at a time.
func (s *Signal) Sleep(ctx context.Context, d time.Duration) (woken, ok bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return false, ctx.Err() == nil
	case <-ctx.Done():
		return false, false
	case <-s.c:
	}
	if rest := time.Until(s.handled.Add(apart)); rest > 0 {
		timer.Reset(rest)
		select {
		case <-timer.C:
		case <-ctx.Done():
			return false, false
		}
		select {
		case <-s.c: // drops signals that arrived meanwhile
		default:
		}
	}
	s.handled = time.Now()
	return true, ctx.Err() == nil
}
