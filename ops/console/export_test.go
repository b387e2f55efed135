package console

import (
	"context"
	"time"

	"github.com/pgfrontier/worker/ops"
)

// Judged is which answer an error is.
func Judged(err error) (status int, hint string) { return judge(err) }

// MaxViewers is how many may get live updates.
const MaxViewers = maxViewers

// CountLooks makes c count its reads for live updates by a call.
func (c *Console) CountLooks(looked func()) {
	look := c.live.look
	c.live.look = func(ctx context.Context) (*snapshot, error) {
		looked()
		return look(ctx)
	}
}

// Viewers counts those who get live updates, and reports whether a goroutine reads
// for them.
func (c *Console) Viewers() (n int, runs bool) {
	c.live.mu.Lock()
	defer c.live.mu.Unlock()
	if c.live.ended == nil {
		return len(c.live.viewers), false
	}
	select {
	case <-c.live.ended:
		return len(c.live.viewers), false
	default:
		return len(c.live.viewers), true
	}
}

// Drawn is what a snapshot's picture has.
func Drawn(least, head, position int64) float64 { return scale(least, head)(position) }

// History is how far consumers were behind.
type History struct{ h history }

// Add keeps how they stand.
func (h *History) Add(all []ops.Consumer, now time.Time) { h.h.add(all, now) }

// Line is how one is drawn.
func (h *History) Line(name string, now time.Time) (path, text string) {
	s := h.h.spark(name, now)
	return s.Path, s.Text
}

// Kept counts the consumers.
func (h *History) Kept() int { return len(h.h.most) }

// Remember keeps how consumers stood.
func (c *Console) Remember(all []ops.Consumer, at time.Time) { c.live.history.add(all, at) }
