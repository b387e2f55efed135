package frontier

import "github.com/pgfrontier/worker/store"

// Page is the result of one read of the log by a consumer.
type Page struct {
	// Checkpoint is the consumer's checkpoint before the read.
	Checkpoint int64
	// Through is the position up to which the read was complete. A position up to Through that the
	// read did not show was not visible, if it is above Checkpoint or in Open. Through is below
	// Checkpoint if the read reached its limit among late events.
	Through int64
	// Missing are the positions in (Checkpoint, Through] that were not visible, whatever their
	// type.
	Missing []store.Range
	// Open are the ranges that the consumer passed while they were in doubt. All of them are
	// up to Checkpoint.
	Open []store.Range
	// Found are the positions in Open that were visible.
	Found []int64
}

// Crossing is the decision about moving from Checkpoint to To.
type Crossing struct {
	To     int64         // the new checkpoint: never above Safe, never below Checkpoint
	Void   store.Missing // passed positions that never appear
	Opened []store.Range // passed positions in doubt: watch them from now on
	Closed []Closed      // the open ranges that change, in order
}

// Closed is an open range that ends, wholly or in part.
type Closed struct {
	Index   int           // in Page.Open
	Late    []store.Range // appeared: deliver them
	Void    []store.Range // never appear
	Remains []store.Range // still in doubt
}

// Cross decides about the positions that a read of the log did not show. v must have been
// taken before the read. The slices must be ascending and disjoint.
//
// A position that was in doubt before the read may have appeared after the read, so it must be
// watched. A position that was not in doubt and that the read does not show never appears.
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
	// A read that went beyond the open ranges has read all of them.
	readThrough := v.Safe
	if p.Through < p.Checkpoint {
		readThrough = min(readThrough, p.Through)
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
		if closed.Late == nil && (open.First > readThrough || len(doubts) > 0 && covers(doubts[0], open)) {
			continue // nothing changed, the usual case
		}
		rest := subtract([]store.Range{open}, closed.Late)
		closed.Void = subtract(intersect(rest, []store.Range{{First: open.First, Last: readThrough}}), doubts)
		closed.Remains = subtract(rest, closed.Void)
		if len(closed.Late) > 0 || len(closed.Void) > 0 {
			c.Closed = append(c.Closed, closed)
		}
	}
	return c
}

// InDoubt returns the doubts within (after, upTo], cut to these bounds. If there are none,
// Cross needs only the count of the missing positions.
func (v *Value) InDoubt(after, upTo int64) []store.Range {
	s := store.Range{First: after + 1, Last: upTo}
	return intersect(within(v.Doubts, s), []store.Range{s})
}
