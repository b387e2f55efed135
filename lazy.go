package worker

import (
	"time"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/reader"
)

// lazyFor is how long a part keeps in memory that it has passed positions in which
// nothing is its own.
const lazyFor = 100 * time.Millisecond

// lazily is what a part has passed without a batch. Events of other parts are no
// reason to move the checkpoint at once: at the head of the log, each of many parts
// would do so for each event. The next batch, or one of its own soon, moves it.
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
// somebody waits for the consumer, while an event that fails or cannot be read is narrowed down (SkipEvent
// relies on the checkpoint before it), or if parts are to meet.
func (c *consumerLoop) passesLazily(w *work) bool {
	a := &w.advance
	switch {
	case !c.unit.isPart(), len(w.Events)+len(w.deadLetters)+len(a.Marks)+len(a.Gone)+len(w.from.Open) > 0, w.retried != nil,
		c.tally.bisect.active(), c.poison != nil, c.suspects > 0, c.rescaling.target != "", c.lazyDue(), c.w.awaited.isWaitedFor(c.unit.title):
		return false
	}
	if c.lazily.upTo == 0 {
		c.lazily.since = time.Now()
	}
	c.lazily.upTo = a.To
	if w.Full {
		c.polled = nil
	}
	return true
}

// lazyDue reports whether what was passed must be written down.
func (c *consumerLoop) lazyDue() bool {
	return c.lazily.upTo > c.progress.Position && time.Since(c.lazily.since) >= lazyFor
}

// lazyWork writes it down.
func (c *consumerLoop) lazyWork(v *frontier.Value) *work {
	at := c.lazily.upTo
	return c.workOf(reader.Page{Look: frontier.Page{Checkpoint: at, Through: at}}, v)
}
