// Package turn tells a loop that hangs from one that rests.
package turn

import (
	"fmt"
	"sync/atomic"
	"time"
)

// Limit is how long a turn of a loop may take: each of its statements has a bound.
const Limit = 2 * time.Minute

// Turn says since when a loop does something. The zero Turn is of a loop that rests.
type Turn struct{ since atomic.Int64 } // in Unix nanoseconds; 0: it rests

// Begin begins a turn.
func (t *Turn) Begin() { t.since.Store(time.Now().UnixNano()) }

// End ends it.
func (t *Turn) End() { t.since.Store(0) }

// Lasts returns for how long the turn has been lasting, 0 if the loop rests.
func (t *Turn) Lasts() (d time.Duration) {
	if n := t.since.Load(); n != 0 {
		d = time.Since(time.Unix(0, n))
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
