package consume

import "github.com/pgfrontier/worker/store"

// bisection narrows a batch that failed down to the event that fails. What
// comes before that event is committed, and it is tried alone. A batch of which
// nobody knows where it failed is first tried again as it is: what failed may
// have been something else than an event. The zero value suspects nothing.
type bisection struct {
	until int64 // the last position under suspicion; 0: none
	bound int64 // a batch goes no further
	limit int   // events a batch has at most; 0: as many as always
}

// failed takes note that a batch of events failed: at the one with that
// index, or below 0 if nobody knows which.
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

// passed takes note that there is nothing left to do up to a position.
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

// upTo bounds a position that may be read.
func (i bisection) upTo(position int64) int64 {
	if i.active() {
		return min(position, i.bound)
	}
	return position
}

// size bounds the number of events in a batch.
func (i bisection) size(batchSize int) int {
	if i.limit > 0 {
		return min(batchSize, i.limit)
	}
	return batchSize
}
