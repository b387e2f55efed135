// Package watchdog detects a loop that hangs, and distinguishes it from an idle loop.
package watchdog

import (
	"fmt"
	"sync/atomic"
	"time"
)

// Limit is how long a turn of a loop may take: each of its statements has a bound.
const Limit = 2 * time.Minute

// Moment is a time that several goroutines know. It keeps the reading of the monotonic clock,
// which the number of its nanoseconds would not: the machine's clock may be set meanwhile. It is
// the zero time at first.
type Moment struct{ at atomic.Pointer[time.Time] }

// Set sets it.
func (m *Moment) Set(at time.Time) { m.at.Store(&at) }

// Get returns it.
func (m *Moment) Get() (at time.Time) {
	if last := m.at.Load(); last != nil {
		at = *last
	}
	return at
}

// Turn says since when a loop does something. The zero Turn is of a loop that rests.
type Turn struct{ since Moment } // the zero time: it rests

// Begin begins a turn.
func (t *Turn) Begin() { t.since.Set(time.Now()) }

// End ends it.
func (t *Turn) End() { t.since.Set(time.Time{}) }

// Lasts returns for how long the turn has been lasting, 0 if the loop rests.
func (t *Turn) Lasts() (d time.Duration) {
	if at := t.since.Get(); !at.IsZero() {
		d = time.Since(at)
	}
	return d
}

// Hung returns an error for a loop whose turn lasts longer than limit.
func Hung(loop string, lasts, limit time.Duration) error {
	if lasts <= limit {
		return nil
	}
	return fmt.Errorf("the loop %s has hung for %v: a hook or a driver that does not return keeps it; start the process again, and see the stacks that SIGQUIT prints", loop, lasts.Round(time.Second))
}
