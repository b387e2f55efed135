package reader

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/bounded"
)

// readOn starts the next read of a window. It does not if a read is in flight or memory is
// exhausted.
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
	if w.atMemoryLimit = !a.makeRoom(w, bytes, least == 0); w.atMemoryLimit {
		return
	}
	s := &Stretch{after: ahead.after, through: ahead.after, v: v, bytes: bytes, read: make(chan struct{}), done: make(chan struct{})}
	ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx)) // independent of a single reader
	a.used += bytes
	w.inFlight = append(w.inFlight, s)
	go a.readInBackground(ctx, w, s, ahead, pages)
}

// makeRoom reports whether memory has room for a stretch. If drop is true, it drops stretches
// that other readers will want. readOn sets drop only for a reader without a page. So a reader
// that is far ahead waits for each of its reads, until the others catch up.
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

// final returns the position up to which every position after the given one is visible or void
// forever.
func final(v *frontier.Value, after int64) int64 {
	if doubts := v.InDoubt(after, v.Safe); len(doubts) > 0 {
		return doubts[0].First - 1
	}
	return v.Safe
}

// extent returns the number of pages of the next read, and the bytes reserved for its events.
// Memory has room for two stretches for each reader.
func (a *Ahead) extent(w *window, ahead span) (pages, bytes int) {
	bytes = min(maxBytesAhead, a.memory/(2*max(a.attached, 1)))
	sight := maxEventsAhead
	if w.scoped {
		sight = scopedEventsAhead
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

// readInBackground reads a stretch in the background.
func (a *Ahead) readInBackground(ctx context.Context, w *window, s *Stretch, ahead span, pages int) {
	defer close(s.done)
	defer s.cancel()
	err := a.readStretch(ctx, w, s, ahead, pages)
	a.mu.Lock()
	defer a.mu.Unlock()
	w.inFlight = slices.DeleteFunc(w.inFlight, func(other *Stretch) bool { return other == s })
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

// readStretch reads a stretch and counts its missing positions, on one connection.
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
		pages, counted, err = w.readAhead(ctx, conn, s.v, ahead, a.batch, n, max(s.bytes, 1), false)
		return err
	})
	if err == nil && (len(pages) == 0 || pages[len(pages)-1].Positions.Through <= ahead.after) {
		err = fmt.Errorf("worker: read events: the log returned no page for positions (%d, %d]", ahead.after, ahead.upTo)
	}
	if err != nil {
		return err
	}
	for i := range pages {
		pages[i].Took = time.Since(began) / time.Duration(len(pages))
	}
	a.addRead(ctx, w, s, pages)
	if counted {
		return nil
	}
	return conn.Bounded(ctx, func(ctx context.Context) error { return w.countMissing(ctx, conn, s.v, pages) })
}

// addRead adds a stretch that was read to its window and starts the next read. It drops a
// stretch that no reader wants.
func (a *Ahead) addRead(ctx context.Context, w *window, s *Stretch, pages []Page) {
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
	s.pages, s.bytes, s.through, s.more, s.isRead = pages, bytes, last.Positions.Through, last.Full, true
	if events > 0 {
		w.width = bytes / events
	}
	w.add(s)
	a.trim(w)
	a.readOn(ctx, w)
	close(s.read)
}
