package consume

import "github.com/pgfrontier/worker/store"

// bisection narrows a failed batch down to the failing event. The events before the failing
// event are committed, and the failing event is tried alone. If the failing event is
// unknown, the batch is first tried again unchanged: the failure may not be an event's.
// Then the batch is halved until the event is found. The zero value suspects no event.
type bisection struct {
	until int64 // the last suspected position; 0: none
	bound int64 // the last position that a batch may contain
	limit int   // the most events in a batch; 0: BatchSize
}

// failed records that a batch of events failed. at is the index of the failing event, or
// below 0 if it is unknown.
func (i bisection) failed(events []store.PersistedEvent, at int) bisection {
	n := len(events)
	switch {
	case n == 0:
		return i
	case n > 1 && at >= 0 && at < n:
		p := events[at].GlobalPosition
		return bisection{until: p, bound: p - 1}
	case n > 1:
		last := events[n-1].GlobalPosition
		if i.active() {
			n /= 2
		}
		return bisection{until: last, bound: last, limit: n}
	}
	p := events[0].GlobalPosition
	return bisection{until: p, bound: p, limit: 1}
}

// passed records that everything up to position is done.
func (i bisection) passed(position int64) bisection {
	if position >= i.until {
		return bisection{}
	}
	if position >= i.bound {
		i.bound, i.limit = i.until, 1
	}
	return i
}

func (i bisection) active() bool { return i.until > 0 }

// upTo returns the lower of position and the bound for the next batch.
func (i bisection) upTo(position int64) int64 {
	if i.active() {
		return min(position, i.bound)
	}
	return position
}

// size returns the most events that the next batch may have.
func (i bisection) size(batchSize int) int {
	if i.limit > 0 {
		return min(batchSize, i.limit)
	}
	return batchSize
}
