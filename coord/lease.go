package coord

import (
	"time"

	"github.com/google/uuid"
)

// lease is the right to lead for a limited time, as a statement read it. The zero value has no
// holder.
type lease struct {
	holder uuid.UUID
	term   int64         // incremented at each change of the holder
	left   time.Duration // time until the expiry, by the database's clock, at the read
	most   time.Duration // the maximum of left: the HeartbeatTimeout of the holder
	read   time.Time     // start of the statement that read the lease, by this process's clock
}

// expired reports whether any worker may take the lease. No lease is granted for longer than
// most. If left exceeds most, the database's clock was set back after the grant.
func (l lease) expired() bool {
	return l.holder == uuid.Nil || l.left <= 0 || l.left > l.most
}

// heldBy reports whether id held the lease at the read.
func (l lease) heldBy(id uuid.UUID) bool { return l.holder == id && !l.expired() }

// due reports whether id should claim the lease: to take an expired lease, or to renew its own
// after an interval.
func (l lease) due(id uuid.UUID, duration, interval time.Duration) bool {
	return l.expired() || l.holder == id && l.left <= duration-interval
}

// remaining returns how long the holder may rely on the lease. The time counts from before the
// lease was granted. A tenth of the duration is subtracted, because clocks may run at
// different speeds.
func (l lease) remaining(now time.Time, duration time.Duration) time.Duration {
	if l.expired() {
		return 0
	}
	return min(max(l.left-duration/10-now.Sub(l.read), 0), duration)
}
