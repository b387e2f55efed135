// Package wakeup ends pauses early, but not too often.
package wakeup

import (
	"context"
	"time"
)

// apart is the least time between two pauses that wakeups end. When many
// workers start together, each of them tells all the others; whoever looks no
// more often than this makes what they cost grow with their number, and not
// with its square.
const apart = 50 * time.Millisecond

// Signal wakes one goroutine.
type Signal struct {
	c      chan struct{}
	heeded time.Time // when a wakeup last ended a pause
}

// New returns a Signal that nobody has sent yet.
func New() *Signal { return &Signal{c: make(chan struct{}, 1)} }

// Send ends the pause of whoever sleeps, or else the next. It never blocks;
// what is sent twice before it is heeded counts once.
func (s *Signal) Send() {
	select {
	case s.c <- struct{}{}:
	default:
	}
}

// Sleep waits for d or for Send, and tells which: woken is true after Send.
// The end of ctx ends it too; then ok is false. One goroutine may sleep at a
// time.
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
	if rest := time.Until(s.heeded.Add(apart)); rest > 0 {
		timer.Reset(rest)
		select {
		case <-timer.C:
		case <-ctx.Done():
			return false, false
		}
		select {
		case <-s.c: // what came meanwhile has the same answer
		default:
		}
	}
	s.heeded = time.Now()
	return true, ctx.Err() == nil
}
