package consume

import "time"

const (
	// paceShare is which part of BatchTimeout a batch is to take: a batch of slower events
	// than those before it then still ends in time.
	paceShare = 4
	// firstBatch is how many events a batch has at most while nobody knows how long the
	// handler takes for one.
	firstBatch = 10
)

// pace bounds the batches of a consumer by the time that its handler takes, so that no batch
// ends at BatchTimeout because it has many events. The zero value knows nothing.
type pace struct {
	perEvent time.Duration // the slowest batch's average, and less again after faster ones; 0: not known
}

// handled records how long a batch took for its events. It rises at once, and falls by half
// of the difference.
func (p pace) handled(events int, took time.Duration) pace {
	if events == 0 {
		return p
	}
	each := max(took/time.Duration(events), 1)
	if each < p.perEvent {
		each += (p.perEvent - each) / 2
	}
	return pace{each}
}

// timedOut records that a batch of several events did not end in time. begun is how many
// of its events were begun; all, if nobody knows. The next batch has at most half as many.
func (p pace) timedOut(begun int, timeout time.Duration) pace {
	half := max(begun/2, 1)
	return pace{max(p.perEvent, timeout/paceShare/time.Duration(half)+1)} // rounded up
}

// size bounds the number of events in a batch.
func (p pace) size(batchSize int, timeout time.Duration) int {
	if p.perEvent == 0 {
		return min(batchSize, firstBatch)
	}
	return min(batchSize, max(int(timeout/paceShare/p.perEvent), 1))
}
