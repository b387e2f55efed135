package worker

import (
	"context"
	"time"

	"github.com/pgfrontier/worker/frontier"
)

// farSight is how many events are read ahead in one statement, at least: small
// batches share it.
const farSight = 1_000

// readAhead are the pages after the one that is being handled, read meanwhile.
type readAhead struct {
	at    int64           // where the first of pages begins
	v     *frontier.Value // published before the read
	pages []page
	err   error
	done  chan struct{}
}

// startReadAhead begins to read what follows position after, on a connection
// of its own. It ends with intake.
func (c *consumerLoop) startReadAhead(intake context.Context, after int64) {
	a := &readAhead{at: after, v: c.w.frontier.Value(), done: make(chan struct{})}
	c.ahead = a
	go func() {
		defer close(a.done)
		began, limit := time.Now(), c.w.cfg.BatchSize
		a.pages, a.err = c.lookAhead(intake, c.w.db, a.v, span{after, a.v.Safe}, limit, max(1, farSight/limit), false)
		for i := range a.pages {
			a.pages[i].took = time.Since(began) / time.Duration(len(a.pages))
		}
	}()
}

// takeReadAhead waits for the next page that was read ahead and returns it if
// it follows the consumer's progress, and the value that it was read under. The
// loop holds no connection meanwhile: all loops waiting with one in hand for
// another could wait for ever.
func (c *consumerLoop) takeReadAhead(intake context.Context) (p page, v *frontier.Value) {
	a := c.ahead
	if a == nil {
		return page{}, nil
	}
	c.ahead = nil
	<-a.done
	if a.err != nil || len(a.pages) == 0 || c.progress == nil || c.progress.position != a.at || len(c.progress.open) > 0 {
		return page{}, nil
	}
	p, a.pages = a.pages[0], a.pages[1:]
	switch a.at = p.look.Through; {
	case len(a.pages) > 0:
		c.ahead = a
	case p.full:
		c.startReadAhead(intake, a.at)
	}
	return p, a.v
}
