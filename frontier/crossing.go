package frontier

import "github.com/pgfrontier/worker/store"

// Page is what one read of the log showed a consumer.
type Page struct {
	// Checkpoint is where the consumer stands.
	Checkpoint int64
	// Through is how far the read was complete. A position up to Through that
	// is above Checkpoint or in Open, and that the read did not show, was not
	// visible. It is below Checkpoint if the limit of the read was reached
	// among late events.
	Through int64
	// Missing are the positions in (Checkpoint, Through] that were not
	// visible, whatever their type.
	Missing []store.Range
	// Open are the ranges that the consumer passed while they were in doubt.
	// All of them are up to Checkpoint.
	Open []store.Range
	// Found are the positions in Open that were visible.
	Found []int64
}

// Crossing is what going from Checkpoint to To means.
type Crossing struct {
	To     int64         // the new checkpoint: never above Safe, never below the old one
	Void   store.Missing // passed, and proven never to appear
	Opened []store.Range // passed while in doubt: to be watched from now on
	Closed []Closed      // the open ranges with news, in order
}

// Closed is an open range that ends, wholly or in part.
type Closed struct {
	Index   int           // in Page.Open
	Late    []store.Range // appeared: deliver them
	Void    []store.Range // proven never to appear
	Remains []store.Range // still in doubt
}

// Cross decides what the positions mean that a read of the log did not show. v
// must have been taken before the read, and the slices must be ascending and
// disjoint.
//
// A position that was in doubt before the read may have appeared after it, and
// must be watched. One that was not in doubt, and that the read does not show,
// never appears.
func (v *Value) Cross(p Page) Crossing {
	c := Crossing{To: max(p.Checkpoint, min(p.Through, v.Safe))}
	step := store.Range{First: p.Checkpoint + 1, Last: c.To}
	passed, doubts := intersect(p.Missing, []store.Range{step}), within(v.Doubts, step)
	c.Opened = intersect(passed, doubts)
	for _, s := range subtract(passed, doubts) {
		if c.Void.Count == 0 {
			c.Void.First = s.First
		}
		c.Void.Last = s.Last
		c.Void.Count += s.Count()
	}
	// Open ranges were all looked at once the look went beyond them.
	looked := v.Safe
	if p.Through < p.Checkpoint {
		looked = min(looked, p.Through)
	}
	found := p.Found
	for i, open := range p.Open {
		closed := Closed{Index: i}
		for len(found) > 0 && found[0] <= open.Last {
			if found[0] >= open.First {
				closed.Late = appendPosition(closed.Late, found[0])
			}
			found = found[1:]
		}
		doubts := within(v.Doubts, open)
		if closed.Late == nil && (open.First > looked || len(doubts) > 0 && covers(doubts[0], open)) {
			continue // no news, the usual case
		}
		rest := subtract([]store.Range{open}, closed.Late)
		closed.Void = subtract(intersect(rest, []store.Range{{First: open.First, Last: looked}}), doubts)
		closed.Remains = subtract(rest, closed.Void)
		if len(closed.Late) > 0 || len(closed.Void) > 0 {
			c.Closed = append(c.Closed, closed)
		}
	}
	return c
}

// InDoubt returns the doubts in (after, upTo], cut to it. Where there are
// none, a count of what is missing is all that Cross would need.
func (v *Value) InDoubt(after, upTo int64) []store.Range {
	s := store.Range{First: after + 1, Last: upTo}
	return intersect(within(v.Doubts, s), []store.Range{s})
}
