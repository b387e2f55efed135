package worker

import (
	"context"
	"sync"
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
	pages []page          // not taken yet
	err   error
	end   end
	read  chan struct{} // closed when all is known but what the pages miss
	done  chan struct{} // closed when that is known, too
	next  *readAhead    // the stretch behind it; nil: it has not begun
}

// end is what the stretch behind another one has to know of that.
type end struct {
	at    int64
	more  bool // there is something behind it
	pages int  // that are to be read behind it
}

// startReadAhead begins to read what follows position after, on connections of
// the pool. It ends with intake. before is what comes before it.
func (c *consumerLoop) startReadAhead(intake context.Context, after int64, before []store.PersistedEvent) *readAhead {
	front := &readAhead{end: end{after, true, stretch(c.w.cfg.BatchSize, before)}, read: make(chan struct{})}
	close(front.read)
	c.readOn(intake, front)
	return front.next
}

// readBehind begins to read what follows another stretch, as soon as that is
// read. It may be counted still.
func (c *consumerLoop) readBehind(intake context.Context, front *readAhead) *readAhead {
	a := &readAhead{read: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(a.done)
		<-front.read
		began := time.Now()
		if front.end.more {
			a.err = c.readStretch(intake, front.end, a)
		} else {
			close(a.read)
		}
		for i := range a.pages {
			a.pages[i].took = time.Since(began) / time.Duration(len(a.pages))
		}
	}()
	return a
}

// readStretch reads a stretch and counts what it misses, on one connection.
func (c *consumerLoop) readStretch(intake context.Context, front end, a *readAhead) (err error) {
	var once sync.Once
	read := func() { once.Do(func() { close(a.read) }) }
	defer read()
	if err := c.w.loopConns.take(intake); err != nil {
		return err
	}
	defer c.w.loopConns.release()
	conn := &pooled{w: c.w}
	defer func() { conn.giveBack(err) }()
	var counted bool
	a.at, a.v = front.at, c.w.frontier.Value()
	err = c.reading(intake, conn.session.Load, func(ctx context.Context) (err error) {
		a.pages, counted, err = c.lookAhead(ctx, conn, a.v, span{a.at, a.v.Safe}, c.w.cfg.BatchSize, front.pages, false)
		return err
	})
	if err != nil {
		return err
	}
	if n := len(a.pages); n > 0 {
		last := &a.pages[n-1]
		a.end = end{last.look.Through, last.full, stretch(c.w.cfg.BatchSize, last.events)}
	}
	read()
	if counted {
		return nil
	}
	return c.reading(intake, conn.session.Load, func(ctx context.Context) error { return c.countMissing(ctx, conn, a.v, a.pages) })
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
	if !a.follows(c.progress) {
		for ; a != nil; a = a.next {
			<-a.done
		}
		return page{}, nil
	}
	c.readOn(intake, a)
	p, a.pages = a.pages[0], a.pages[1:]
	a.at = p.look.Through
	if c.ahead = a; len(a.pages) == 0 {
		c.ahead = a.next
	}
	return p, a.v
}

// follows reports whether the stretch has pages that go on from p, in the same
// incarnation of the server.
func (a *readAhead) follows(p *progress) bool {
	return a.err == nil && len(a.pages) > 0 && p != nil && p.position == a.at && len(p.open) == 0 && p.token == a.v.Token
}

// readOn begins to read what is behind a stretch whose pages are being taken:
// another one or, where it has to be counted as well, two, so that one is
// counted while the next is read.
func (c *consumerLoop) readOn(intake context.Context, a *readAhead) {
	ahead := 1
	if c.scoped() {
		ahead = 2
	}
	for ; ahead > 0 && a.goesOn(); ahead-- {
		if a.next == nil {
			a.next = c.readBehind(intake, a)
		}
		a = a.next
	}
}

// goesOn: there is more behind the stretch, as far as is known.
func (a *readAhead) goesOn() bool {
	select {
	case <-a.read:
		return a.end.more
	default:
		return true
	}
}
