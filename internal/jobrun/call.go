// Package jobrun is what the workers of jobs and jobs/table share. The statements are theirs.
package jobrun

import (
	"context"
	"os"
	"sync/atomic"
	"time"
)

// Call is a call of a function of the program that may ignore the end of its context. Such a
// function is given up. After each Do, Finish or GiveUp is called, never both.
type Call struct {
	Grace  time.Duration     // how long the function may run after its context has ended
	Goexit error             // the error of a function that calls runtime.Goexit
	Finish func(err error)   // the function has returned err in time
	GiveUp func(cause error) // the function has not returned; called by another goroutine
	Late   func(err error)   // the function has returned err after GiveUp

	over atomic.Bool
}

// Do calls f, whose context is ctx. f must recover its panics.
func (c *Call) Do(ctx context.Context, f func() error) {
	returned := make(chan struct{})
	defer context.AfterFunc(ctx, func() { c.watch(ctx, returned) })()
	err := c.Goexit
	defer func() { // runs also if runtime.Goexit ends the goroutine
		close(returned)
		if c.over.CompareAndSwap(false, true) {
			c.Finish(err)
		} else {
			c.Late(err)
		}
	}()
	err = f()
}

// Over reports whether the function has returned or was given up.
func (c *Call) Over() bool { return c.over.Load() }

// watch waits for a function whose context has ended, and gives it up after the grace period.
func (c *Call) watch(ctx context.Context, returned <-chan struct{}) {
	timer := time.NewTimer(c.Grace)
	defer timer.Stop()
	select {
	case <-returned:
	case <-timer.C:
		if c.over.CompareAndSwap(false, true) {
			c.GiveUp(context.Cause(ctx))
		}
	}
}

// Bounded returns the context of a call. It ends after limit with the given cause. 0 is no limit.
func Bounded(parent context.Context, limit time.Duration, cause error) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	if limit <= 0 {
		return ctx, cancel
	}
	bounded, stop := context.WithTimeoutCause(ctx, limit, cause)
	return bounded, func(why error) { cancel(why); stop() }
}

// CauseOf returns why ctx has ended, nil if it has not.
func CauseOf(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}

// Wake wakes the receiver of c, now or at its next receive.
func Wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Hostname returns $HOSTNAME or, without one, the name that the system gives.
func Hostname() string {
	if h := os.Getenv("HOSTNAME"); h != "" {
		return h
	}
	h, _ := os.Hostname() // the name only informs people
	return h
}
