package worker

import (
	"context"
	"time"

	"github.com/pgfrontier/worker/frontier"
)

// readAhead is the page after the one that is being handled, read meanwhile.
type readAhead struct {
	after int64
	v     *frontier.Value // published before the read
	page  page
	err   error
	done  chan struct{}
}

// startReadAhead begins to read what follows position after, on a connection
// of its own. It ends with intake.
func (c *consumerLoop) startReadAhead(intake context.Context, after int64) {
	a := &readAhead{after: after, v: c.w.frontier.Value(), done: make(chan struct{})}
	c.ahead = a
	go func() {
		defer close(a.done)
		began := time.Now()
		a.page, a.err = c.lookAhead(intake, c.w.db, a.v, span{after, a.v.Safe}, c.w.cfg.BatchSize, false)
		a.page.took = time.Since(began)
	}()
}

// takeReadAhead waits for the page that was read ahead and returns it if it
// follows the consumer's progress. The loop holds no connection meanwhile: all
// loops waiting with one in hand for another could wait for ever.
func (c *consumerLoop) takeReadAhead() *readAhead {
	a := c.ahead
	if a == nil {
		return nil
	}
	c.ahead = nil
	<-a.done
	if a.err != nil || c.progress == nil || c.progress.position != a.after || len(c.progress.open) > 0 {
		return nil
	}
	return a
}
