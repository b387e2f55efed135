package consume

import (
	"time"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/reader"
)

const (
	// leastDefer is the least of deferLimit.
	leastDefer = 100 * time.Millisecond
	// deferredCommits is how many commits of passed positions the parts of one consumer make
	// in a second at most, all together, where leastDefer allows more.
	deferredCommits = 40
)

// deferLimit is how long a part keeps in memory that it has passed positions in which
// nothing is its own. It grows with the number of parts, so that their commits do not.
// A position that somebody waits for is committed at once, see lazyDue.
func deferLimit(slots partition.Range) time.Duration {
	return max(leastDefer, partition.Slots*time.Second/time.Duration(deferredCommits*slots.Size()))
}

// lazily is what a part has passed without a batch. Events of other parts are no
// reason to move the checkpoint at once: at the head of the log, each of many parts
// would do so for each event. The next batch moves it, or one of its own after deferLimit.
//
// Only what has nothing missing is passed so: a missing position must be in the
// audit, or be watched.
type lazily struct {
	upTo  int64 // 0: nothing
	since time.Time
}

// at is where the unit goes on: its checkpoint, or beyond that.
func (c *consumerLoop) at() int64 { return max(c.progress.Position, c.lazily.upTo) }

// passesLazily takes note that a planned work can wait, and reports whether it can. Not so if
// somebody waits for a position that it passes, while an event that fails or cannot be read is
// narrowed down (SkipEvent relies on the checkpoint before it), or if parts are to meet.
func (c *consumerLoop) passesLazily(w *work) bool {
	a := &w.advance
	switch {
	case !c.unit.isPart(), len(w.Events)+len(w.deadLetters)+len(a.Marks)+len(a.Gone)+len(w.from.Open) > 0, w.retried != nil,
		c.tally.bisect.active(), c.poison != nil, c.suspects > 0, c.rescaling.target != "", c.lazyDue(), c.isWaitedFor(a.To):
		return false
	}
	if c.lazily.upTo == 0 {
		c.lazily.since = time.Now()
	}
	c.lazily.upTo = a.To
	c.status.passed(a.To)
	if w.Full {
		c.polled = nil
	}
	return true
}

// lazyDue reports whether what was passed must be written down: it was kept for
// deferLimit, or somebody waits for it.
func (c *consumerLoop) lazyDue() bool {
	return c.lazily.upTo > c.progress.Position &&
		(time.Since(c.lazily.since) >= deferLimit(c.unit.slots) || c.isWaitedFor(c.lazily.upTo))
}

// isWaitedFor reports whether somebody waits for a position that a checkpoint at upTo
// reaches, and the present one does not.
func (c *consumerLoop) isWaitedFor(upTo int64) bool {
	return c.w.awaited.isWaitedFor(c.unit.title, c.progress.Position, upTo)
}

// lazyWork writes it down.
func (c *consumerLoop) lazyWork(v *frontier.Value) *work {
	at := c.lazily.upTo
	return c.workOf(reader.Page{Positions: frontier.Page{Checkpoint: at, Through: at}}, v)
}
