package batch

import "time"

const (
	// paceShare divides BatchTimeout: a batch is planned to take BatchTimeout/paceShare.
	// Then a batch of slower events still ends in time.
	paceShare = 4
	// firstBatch is the most events of a batch while the handler's time for an event is
	// unknown.
	firstBatch = 10
)

// Pace limits the size of a consumer's batches by the time that its handler takes. So no
// batch exceeds BatchTimeout because it has many events. The zero value has no measurement.
type Pace struct {
	perEvent time.Duration // the average of the slowest batch, lowered by faster batches; 0: unknown
}

// Handled records how long a batch took for its events. A slower average replaces perEvent
// at once. A faster one lowers perEvent by half of the difference.
func (p Pace) Handled(events int, took time.Duration) Pace {
	if events == 0 {
		return p
	}
	each := max(took/time.Duration(events), 1)
	if each < p.perEvent {
		each += (p.perEvent - each) / 2
	}
	return Pace{each}
}

// TimedOut records that a batch of several events exceeded BatchTimeout. begun is the
// number of its events that were begun, or all if that is unknown. The next batch has at
// most half as many.
func (p Pace) TimedOut(begun int, timeout time.Duration) Pace {
	half := max(begun/2, 1)
	return Pace{max(p.perEvent, timeout/paceShare/time.Duration(half)+1)} // rounded up
}

// Size returns the most events that the next batch may have.
func (p Pace) Size(batchSize int, timeout time.Duration) int {
	if p.perEvent == 0 {
		return min(batchSize, firstBatch)
	}
	return min(batchSize, max(int(timeout/paceShare/p.perEvent), 1))
}
