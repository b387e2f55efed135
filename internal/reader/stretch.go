package reader

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/bounded"
)

// A stretch that is read ahead in one statement has several pages, as long as
// it stays below so many events and, going by those before it, so many bytes.
const (
	farSight = 4_000
	farBytes = 4 << 20
)

// Stretch is a stretch of pages that follow one another, read by one statement.
type Stretch struct {
	after, through int64
	v              *frontier.Value // published before the read
	pages          []Page          // not dropped yet
	bytes          int             // of the memory
	more           bool            // there is probably more behind it

	isRead    bool          // all is known but what the pages miss
	isCounted bool          // that is known, too
	read      chan struct{} // closed when it is read, or was not
	done      chan struct{} // closed when nothing is being done for it any more
	cancel    context.CancelFunc
}

// Done returns a channel that is closed when the stretch is read, or was not.
func (s *Stretch) Done() <-chan struct{} { return s.done }

// page returns the page behind a position.
func (s *Stretch) page(at int64) (p Page, ok bool) {
	for _, p := range s.pages {
		if at < p.Look.Through {
			return p.from(at)
		}
	}
	return Page{}, false
}

// shorten drops the first page and returns its bytes.
func (s *Stretch) shorten() (freed int) {
	p := &s.pages[0]
	freed = sizeOf(p.Events)
	s.after, s.bytes, s.pages = p.Look.Through, s.bytes-freed, s.pages[1:]
	return freed
}

// readOn begins to read what the readers of a window need next, unless something
// is being read, or there is no room for it.
func (a *Ahead) readOn(ctx context.Context, w *window) {
	if w.reading() != nil || len(w.at) == 0 {
		return
	}
	v := a.value()
	if len(w.stretches) > 0 && w.stretches[0].v.Token != v.Token {
		a.fail(w, nil)
		return
	}
	ahead, least, ok := w.next(func(after int64) int64 { return final(v, after) })
	if !ok {
		return
	}
	pages, bytes := a.extent(w, ahead)
	if w.crowded = !a.makeRoom(w, bytes, least == 0); w.crowded {
		return
	}
	s := &Stretch{after: ahead.after, through: ahead.after, v: v, bytes: bytes, read: make(chan struct{}), done: make(chan struct{})}
	ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx)) // of no single reader
	a.used += bytes
	w.flying = append(w.flying, s)
	go a.fly(ctx, w, s, ahead, pages)
}

// makeRoom reports whether there is room for a stretch. Only for a reader with
// nothing before it, others may lose what they will want: so who is far ahead
// waits for each of its reads, and the others come nearer.
func (a *Ahead) makeRoom(w *window, bytes int, drop bool) bool {
	for a.used+bytes > a.memory {
		freed, ok := 0, false
		if drop {
			freed, ok = w.evict()
		}
		if !ok {
			return false
		}
		a.used -= freed
	}
	return true
}

// final is how far all behind a position is visible or void for good.
func final(v *frontier.Value, after int64) int64 {
	if doubts := v.InDoubt(after, v.Safe); len(doubts) > 0 {
		return doubts[0].First - 1
	}
	return v.Safe
}

// extent is how many pages are read in one statement, and how many bytes of
// events they may have. Two stretches for each reader have room.
func (a *Ahead) extent(w *window, ahead span) (pages, bytes int) {
	bytes = min(farBytes, a.memory/(2*max(a.attached, 1)))
	sight := farSight
	if w.scoped {
		sight = scopedSight
	} else {
		sight = int(min(int64(sight), ahead.upTo-ahead.after+int64(a.batch)-1))
	}
	if w.width > 0 {
		sight = min(sight, bytes/w.width)
	}
	pages = max(1, sight/a.batch)
	if w.width > 0 {
		bytes = min(pages*a.batch*w.width, bounded.MaxBytes)
	}
	return pages, bytes
}

// fly reads a stretch.
func (a *Ahead) fly(ctx context.Context, w *window, s *Stretch, ahead span, pages int) {
	defer close(s.done)
	defer s.cancel()
	err := a.readStretch(ctx, w, s, ahead, pages)
	a.mu.Lock()
	defer a.mu.Unlock()
	w.flying = slices.DeleteFunc(w.flying, func(other *Stretch) bool { return other == s })
	if err == nil {
		s.isCounted = true
		return
	}
	if !s.isRead {
		a.used -= s.bytes
		close(s.read)
	}
	a.fail(w, err)
}

// readStretch reads a stretch and counts what it misses, on one connection.
func (a *Ahead) readStretch(ctx context.Context, w *window, s *Stretch, ahead span, n int) (err error) {
	conn, err := a.conns.Take(ctx)
	if err != nil {
		return err
	}
	defer func() { conn.GiveBack(err) }()
	began := time.Now()
	var pages []Page
	var counted bool
	err = conn.Bounded(ctx, func(ctx context.Context) (err error) {
		pages, counted, err = w.lookAhead(ctx, conn, s.v, ahead, a.batch, n, max(s.bytes, 1), false)
		return err
	})
	if err == nil && (len(pages) == 0 || pages[len(pages)-1].Look.Through <= ahead.after) {
		err = fmt.Errorf("worker: read events: the log has answered nothing for positions (%d, %d]", ahead.after, ahead.upTo)
	}
	if err != nil {
		return err
	}
	for i := range pages {
		pages[i].Took = time.Since(began) / time.Duration(len(pages))
	}
	a.landed(ctx, w, s, pages)
	if counted {
		return nil
	}
	return conn.Bounded(ctx, func(ctx context.Context) error { return w.countMissing(ctx, conn, s.v, pages) })
}

// landed adds a stretch that is read to its window, unless nobody wants it any
// more, and goes on with the next.
func (a *Ahead) landed(ctx context.Context, w *window, s *Stretch, pages []Page) {
	last := &pages[len(pages)-1]
	bytes, events := 0, 0
	for i := range pages {
		pages[i].slots = &slotsOf{events: pages[i].Events}
		bytes += sizeOf(pages[i].Events)
		events += len(pages[i].Events)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.used += bytes - s.bytes
	s.pages, s.bytes, s.through, s.more, s.isRead = pages, bytes, last.Look.Through, last.Full, true
	if events > 0 {
		w.width = bytes / events
	}
	w.add(s)
	a.trim(w)
	a.readOn(ctx, w)
	close(s.read)
}
