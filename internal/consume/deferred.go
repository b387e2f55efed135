package consume

import (
	"time"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/reader"
)

const (
	// leastDefer is the lower bound of deferLimit.
	leastDefer = 100 * time.Millisecond
	// deferredCommits is the most deferred commits a second of all parts of one consumer,
	// where leastDefer allows more.
	deferredCommits = 40
)

// deferLimit is how long a part defers the commit of positions without events of its own.
// It grows with the number of parts, so that their total number of commits does not. A
// position that a caller waits for is committed at once, see deferredDue.
func deferLimit(slots partition.Range) time.Duration {
	return max(leastDefer, partition.Slots*time.Second/time.Duration(deferredCommits*slots.Size()))
}

// deferredMove is the move of the checkpoint that a part has deferred. Events of other
// parts need no immediate commit. At the head of the log, each of many parts would
// otherwise commit for each event. The next batch moves the checkpoint, or a commit of its
// own after deferLimit.
//
// A move with a missing position is never deferred: the missing position must be in the
// audit table, or be watched.
type deferredMove struct {
	upTo  int64 // 0: nothing is deferred
	since time.Time
}

// at returns the position where the unit continues: its checkpoint, or the deferred move's
// end.
func (c *consumerLoop) at() int64 { return max(c.progress.Position, c.deferred.upTo) }

// deferCommit defers the commit of a page without events of this unit, and reports whether
// it did. It does not defer if a caller waits for a position that the page passes, or if
// parts are to be merged. It does not defer either while a failing or unreadable event is
// narrowed down: SkipEvent relies on the checkpoint before that event.
func (c *consumerLoop) deferCommit(w *work) bool {
	a := &w.advance
	switch {
	case !c.unit.isPart(), len(w.Events)+len(w.deadLetters)+len(a.Marks)+len(a.Gone)+len(w.from.Open) > 0, w.retried != nil,
		c.tally.Bisection.Active(), c.poison != nil, c.suspects > 0, c.rescaling.Merges(), c.deferredDue(), c.isWaitedFor(a.To):
		return false
	}
	if c.deferred.upTo == 0 {
		c.deferred.since = time.Now()
	}
	c.deferred.upTo = a.To
	c.status.passed(a.To)
	if w.Full {
		c.polled = nil
	}
	return true
}

// deferredDue reports whether the deferred move must be committed: deferLimit has passed,
// or a caller waits for it.
func (c *consumerLoop) deferredDue() bool {
	return c.deferred.upTo > c.progress.Position &&
		(time.Since(c.deferred.since) >= deferLimit(c.unit.slots) || c.isWaitedFor(c.deferred.upTo))
}

// isWaitedFor reports whether a caller waits for a position above the checkpoint and up to
// upTo.
func (c *consumerLoop) isWaitedFor(upTo int64) bool {
	return c.w.awaited.isWaitedFor(c.unit.consumerName, c.progress.Position, upTo)
}

// deferredWork returns the work that commits the deferred move.
func (c *consumerLoop) deferredWork(v *frontier.Value) *work {
	at := c.deferred.upTo
	return c.workOf(reader.Page{Positions: frontier.Page{Checkpoint: at, Through: at}}, v)
}
