package coord

import (
	"time"

	"github.com/google/uuid"
)

// lease is the right to lead for a limited time, as a statement read it. Its
// zero value is held by nobody.
type lease struct {
	holder uuid.UUID
	term   int64         // grows with each change of the holder
	left   time.Duration // until it expires, by the database's clock, when it was read
	most   time.Duration // that may be left: the HeartbeatTimeout of its holder
	read   time.Time     // when the statement that read it began, by this process's clock
}

// expired tells whether anyone may take the lease. No lease is ever granted for
// longer than most: one that claims to be was written by a clock that has
// been set back since.
func (l lease) expired() bool {
	return l.holder == uuid.Nil || l.left <= 0 || l.left > l.most
}

// heldBy tells whether id held the lease when it was read.
func (l lease) heldBy(id uuid.UUID) bool { return l.holder == id && !l.expired() }

// due tells whether id should claim the lease: to get it, or, every interval,
// to keep it.
func (l lease) due(id uuid.UUID, duration, interval time.Duration) bool {
	return l.expired() || l.holder == id && l.left <= duration-interval
}

// remaining is how long the holder may rely on the lease from now on. It is
// counted from before the lease was granted, and a tenth of its duration is
// left out for clocks that do not run at the same speed.
func (l lease) remaining(now time.Time, duration time.Duration) time.Duration {
	if l.expired() {
		return 0
	}
	return min(max(l.left-duration/10-now.Sub(l.read), 0), duration)
}
