package consume

import (
	"time"

	"github.com/pgfrontier/worker/internal/partition"
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
func (a *agenda) at() int64 { return max(a.progress.Position, a.deferred.upTo) }

// deferCommit defers the commit of a page without events of this unit, and reports whether
// it did. It does not defer if a caller waits for a position that the page passes, or if
// parts are to be merged. It does not defer either while a failing or unreadable event is
// narrowed down: SkipEvent relies on the checkpoint before that event.
func (a *agenda) deferCommit(w *work) bool {
	to := &w.advance
	switch {
	case !a.unit.isPart(), len(w.Events)+len(w.deadLetters)+len(to.Marks)+len(to.Gone)+len(w.from.Open) > 0, w.retried != nil,
		a.tally.Bisection.Active(), a.poison != nil, a.suspects > 0, a.rescaling.Merges(), a.deferredDue(), a.isWaitedFor(to.To):
		return false
	}
	if a.deferred.upTo == 0 {
		a.deferred.since = time.Now()
	}
	a.deferred.upTo = to.To
	if w.Full {
		a.polled = nil
	}
	return true
}

// deferredDue reports whether the deferred move must be committed: deferLimit has passed,
// or a caller waits for it.
func (a *agenda) deferredDue() bool {
	return a.deferred.upTo > a.progress.Position &&
		(time.Since(a.deferred.since) >= deferLimit(a.unit.slots) || a.isWaitedFor(a.deferred.upTo))
}

// isWaitedFor reports whether a caller waits for a position above the checkpoint and up to
// upTo.
func (a *agenda) isWaitedFor(upTo int64) bool {
	return a.awaited.isWaitedFor(a.unit.consumerName, a.progress.Position, upTo)
}
