// Package watchdog detects a loop that hangs, and distinguishes it from an idle loop.
package watchdog

import (
	"fmt"
	"sync/atomic"
	"time"
)

// Limit is how long an iteration of a loop may take. Each of its statements has a shorter bound.
const Limit = 2 * time.Minute

// Moment is a time that several goroutines share. It keeps the reading of the monotonic clock,
// which a number of nanoseconds would lose. So a change of the machine's clock has no effect. The
// zero value has the zero time.
type Moment struct{ at atomic.Pointer[time.Time] }

// Set stores at.
func (m *Moment) Set(at time.Time) { m.at.Store(&at) }

// Get returns the stored time.
func (m *Moment) Get() (at time.Time) {
	if last := m.at.Load(); last != nil {
		at = *last
	}
	return at
}

// Iteration records the start of a loop's current iteration. The zero value is an idle loop.
type Iteration struct{ since Moment } // the zero time: the loop is idle

// Begin records the start of an iteration.
func (t *Iteration) Begin() { t.since.Set(time.Now()) }

// End records that the loop is idle.
func (t *Iteration) End() { t.since.Set(time.Time{}) }

// Lasts returns how long the current iteration has taken, 0 if the loop is idle.
func (t *Iteration) Lasts() (d time.Duration) {
	if at := t.since.Get(); !at.IsZero() {
		d = time.Since(at)
	}
	return d
}

// Hung returns an error if an iteration of the loop has taken longer than limit.
func Hung(loop string, lasts, limit time.Duration) error {
	if lasts <= limit {
		return nil
	}
	return fmt.Errorf("the loop %s has hung for %v: a hook or a driver that does not return keeps it; start the process again, and see the stacks that SIGQUIT prints", loop, lasts.Round(time.Second))
}
