package failure

import "github.com/pgfrontier/worker/store"

// Bisection narrows a failed batch down to the failing event. The events before the failing
// event are committed, and the failing event is tried alone. If the failing event is
// unknown, the batch is first tried again unchanged: the failure may not be an event's.
// Then the batch is halved until the event is found. The zero value suspects no event.
type Bisection struct {
	Until int64 // the last suspected position; 0: none
	Bound int64 // the last position that a batch may contain
	Limit int   // the most events in a batch; 0: BatchSize
}

// Failed records that a batch of events failed. at is the index of the failing event, or
// below 0 if it is unknown.
func (i Bisection) Failed(events []store.PersistedEvent, at int) Bisection {
	n := len(events)
	switch {
	case n == 0:
		return i
	case n > 1 && at >= 0 && at < n:
		p := events[at].GlobalPosition
		return Bisection{Until: p, Bound: p - 1}
	case n > 1:
		last := events[n-1].GlobalPosition
		if i.Active() {
			n /= 2
		}
		return Bisection{Until: last, Bound: last, Limit: n}
	}
	p := events[0].GlobalPosition
	return Bisection{Until: p, Bound: p, Limit: 1}
}

// Passed records that everything up to position is done.
func (i Bisection) Passed(position int64) Bisection {
	if position >= i.Until {
		return Bisection{}
	}
	if position >= i.Bound {
		i.Bound, i.Limit = i.Until, 1
	}
	return i
}

// Active reports whether an event is suspected.
func (i Bisection) Active() bool { return i.Until > 0 }

// UpTo returns the lower of position and the bound for the next batch.
func (i Bisection) UpTo(position int64) int64 {
	if i.Active() {
		return min(position, i.Bound)
	}
	return position
}

// Size returns the most events that the next batch may have.
func (i Bisection) Size(batchSize int) int {
	if i.Limit > 0 {
		return min(batchSize, i.Limit)
	}
	return batchSize
}
