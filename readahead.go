package worker

import (
	"context"
	"time"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/store"
)

// A stretch that is read ahead in one statement has several pages, as long as
// it stays below so many events and, going by the page before it, so many bytes
// of payload and metadata.
const (
	farSight = 4_000
	farBytes = 4 << 20
)

// readAhead is a stretch of pages that follow one another, read while those
// before it are handled.
type readAhead struct {
	at    int64           // where the first of pages begins
	v     *frontier.Value // published before the read
	pages []page
	err   error
	done  chan struct{}
	next  *readAhead // the stretch behind it; nil: it has not begun
}

// startReadAhead begins to read what follows position after, on a connection
// of its own. It ends with intake. before is what comes before it.
func (c *consumerLoop) startReadAhead(intake context.Context, after int64, before []store.PersistedEvent) *readAhead {
	a := &readAhead{at: after, v: c.w.frontier.Value(), done: make(chan struct{})}
	limit := c.w.cfg.BatchSize
	n := stretch(limit, before)
	go func() {
		defer close(a.done)
		began := time.Now()
		a.pages, a.err = c.lookAhead(intake, c.w.db, a.v, span{after, a.v.Safe}, limit, n, false)
		for i := range a.pages {
			a.pages[i].took = time.Since(began) / time.Duration(len(a.pages))
		}
	}()
	return a
}

// stretch is how many pages of at most limit events are read in one statement.
func stretch(limit int, before []store.PersistedEvent) int {
	sight, bytes := farSight, 0
	for i := range before {
		bytes += len(before[i].Payload) + len(before[i].Metadata)
	}
	if bytes > 0 {
		sight = min(sight, farBytes*len(before)/bytes)
	}
	return max(1, sight/limit)
}

// takeReadAhead waits for the next page that was read ahead and returns it if
// it follows the consumer's progress, and the value that it was read under. With
// the first page of a stretch it begins to read the next one. The loop holds no
// connection meanwhile: all loops waiting with one in hand for another could
// wait for ever.
func (c *consumerLoop) takeReadAhead(intake context.Context) (p page, v *frontier.Value) {
	a := c.ahead
	if a == nil {
		return page{}, nil
	}
	c.ahead = nil
	<-a.done
	if a.err != nil || len(a.pages) == 0 || c.progress == nil || c.progress.position != a.at || len(c.progress.open) > 0 {
		if a.next != nil {
			<-a.next.done
		}
		return page{}, nil
	}
	if last := a.pages[len(a.pages)-1]; last.full && a.next == nil {
		a.next = c.startReadAhead(intake, last.look.Through, last.events)
	}
	p, a.pages = a.pages[0], a.pages[1:]
	a.at = p.look.Through
	if c.ahead = a; len(a.pages) == 0 {
		c.ahead = a.next
	}
	return p, a.v
}
