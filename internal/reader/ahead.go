package reader

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/store"
)

// Ahead reads the log ahead of a worker's consumers. It reads each stretch once for all
// consumers that pass it. Each consumer takes pages at its own pace.
//
// Ahead reads only final positions: at or below Safe, and before the first doubt. A position
// that is missing there is void, for every consumer and under every later Value of the
// incarnation. So a page that was read for one consumer is valid for all others.
//
// Consumers of all events share one window, and one connection at a time. A consumer whose
// events the log filters has its own window, shared by the consumer's shares. The log skips
// its other events without reading them, which saves more than a shared window.
type Ahead struct {
	log    store.BoundLog
	batch  int
	value  func() *frontier.Value
	conns  Conns
	memory int // most bytes of events kept, in all windows together

	mu        sync.Mutex
	used      int // bytes of events kept or reserved
	attached  int // readers
	unscoped  *window
	shared    map[string]*window // windows of shares, by types
	lastError error
}

// Conns lends connections to read ahead on.
type Conns interface {
	// Take waits for a free connection. The connection is opened at its first statement.
	Take(ctx context.Context) (OwnConn, error)
}

// OwnConn is a connection for one stretch.
type OwnConn interface {
	store.Querier
	// Bounded runs a read on the connection, and cancels the read if no answer comes.
	Bounded(ctx context.Context, read func(ctx context.Context) error) error
	// GiveBack returns the connection. err is the error of the reads.
	GiveBack(err error)
}

// NewAhead returns an Ahead that has read nothing. Its pages have at most batch events, and it
// keeps at most memory bytes of them. It reads under the latest Value, on connections of
// conns.
func NewAhead(log store.BoundLog, batch int, value func() *frontier.Value, conns Conns, memory int) *Ahead {
	a := &Ahead{log: log, batch: batch, value: value, conns: conns, memory: memory}
	a.unscoped = newWindow(newView(log, nil))
	return a
}

// Reader returns the reader of a consumer that wants events of types; without types, of all
// types. share is the consumer's share of these events; nil: all events. The caller closes the
// reader.
func (a *Ahead) Reader(types []string, share *Share) *Reader {
	r := &Reader{view: newView(a.log, types), ahead: a, window: a.unscoped}
	r.share = share
	switch {
	case r.scoped && share != nil:
		r.window = a.ofTypes(types)
	case r.scoped:
		r.window = newWindow(newView(a.log, types))
	}
	return r
}

// ofTypes returns the window for all shares of some types.
func (a *Ahead) ofTypes(types []string) *window {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := strings.Join(types, "\x00") // no type contains it
	if a.shared == nil {
		a.shared = map[string]*window{}
	}
	if a.shared[key] == nil {
		a.shared[key] = newWindow(newView(a.log, types))
	}
	return a.shared[key]
}

// Begin starts to read the pages after position after, unless they are being read. before are
// the events before that position.
func (r *Reader) Begin(ctx context.Context, after int64, before []store.PersistedEvent) {
	r.ahead.mu.Lock()
	defer r.ahead.mu.Unlock()
	if _, ok := r.window.at[r]; !ok {
		r.ahead.attached++
	}
	r.window.at[r] = after
	if r.window.width == 0 {
		r.window.width = width(before)
	}
	r.ahead.readOn(ctx, r.window)
}

// Follows reports whether the reader takes pages that are read ahead.
func (r *Reader) Follows() bool {
	r.ahead.mu.Lock()
	defer r.ahead.mu.Unlock()
	_, ok := r.window.at[r]
	return ok
}

// Take returns the page after position at in the incarnation token, and the Value under which
// the page was read. It waits while that page is being read. If the page is not read ahead,
// Take returns a nil Value, and the consumer reads for itself.
//
// The loop holds no connection while it waits. Otherwise all loops could hold a connection and
// wait for another one forever.
func (r *Reader) Take(ctx context.Context, at int64, token string) (Page, *frontier.Value) {
	for {
		p, v, wait := r.take(ctx, at, token)
		if wait == nil {
			return p, v
		}
		select {
		case <-wait:
		case <-ctx.Done():
			r.Drop()
			return Page{}, nil
		}
	}
}

// take is Take without the wait.
func (r *Reader) take(ctx context.Context, at int64, token string) (p Page, v *frontier.Value, wait <-chan struct{}) {
	a, w := r.ahead, r.window
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := w.at[r]; !ok {
		return Page{}, nil, nil
	}
	w.at[r] = at
	s := w.covering(at)
	if s == nil && w.atMemoryLimit {
		a.readOn(ctx, w)
	}
	if reading := w.reading(); s == nil && reading != nil {
		return Page{}, nil, reading.read // it may contain the page, or the page is read next
	} else if s != nil && !s.isCounted {
		return Page{}, nil, s.done
	}
	var ok bool
	if s != nil && s.v.Token == token {
		p, ok = s.page(at)
	}
	if !ok {
		a.detach(r)
		return Page{}, nil, nil
	}
	p, v = r.pageFor(p), s.v
	if r.share != nil {
		p, v = r.fill(p, v)
	}
	if w.at[r] = p.Positions.Through; !p.Full {
		a.detach(r)
	} else {
		a.trim(w)
	}
	a.readOn(ctx, w)
	return p, v, nil
}

// pageFor returns a page of the window for the reader. The page has only the events that the
// reader wants. If other readers may still get the same page, its payloads are copies that a
// handler may modify.
func (r *Reader) pageFor(p Page) Page {
	r.window.at[r] = p.Positions.Through
	shared, filters := r.window.wanted(p.Positions.Through), len(r.types) > 0 && !r.scoped
	switch {
	case r.share != nil:
		r.keepShare(&p)
	case filters:
		p.keep(r.wants)
	case shared:
		p.Events = slices.Clone(p.Events)
	}
	if shared {
		p.copyBytes()
	}
	return p
}

// pagesJoined is the maximum number of the window's pages that form one page of a part.
const pagesJoined = 64

// fill appends the following pages to a part's page, as long as the part's events fit into a
// batch. So a part's batches are as large as the batches of a whole consumer. All positions of
// the window are final, so the later Value is valid for the earlier pages.
func (r *Reader) fill(p Page, v *frontier.Value) (Page, *frontier.Value) {
	for n := 1; n < pagesJoined && p.Full && len(p.Events) < r.ahead.batch; n++ {
		s := r.window.covering(p.Positions.Through)
		if s == nil || !s.isCounted || s.v.Token != v.Token {
			break
		}
		next, ok := s.page(p.Positions.Through)
		if !ok || r.countShare(&next) > r.ahead.batch-len(p.Events) {
			break
		}
		p, v = p.join(r.pageFor(next)), s.v
	}
	return p, v
}

// Drop stops reading ahead for the reader.
func (r *Reader) Drop() {
	r.ahead.mu.Lock()
	defer r.ahead.mu.Unlock()
	r.ahead.detach(r)
}

// Close calls Drop at the end of the consumer's loop. The last reader of a window cancels the
// window's reads, and waits for their end.
func (r *Reader) Close() {
	a := r.ahead
	a.mu.Lock()
	a.detach(r)
	var left []*Stretch
	if len(r.window.at) == 0 {
		left = append(left, r.window.inFlight...)
	}
	a.mu.Unlock()
	for _, s := range left {
		s.cancel()
		<-s.done
	}
}

// Reading returns the stretches that are being read, in order.
func (r *Reader) Reading() []*Stretch {
	r.ahead.mu.Lock()
	defer r.ahead.mu.Unlock()
	return append([]*Stretch(nil), r.window.inFlight...)
}

// detach removes a reader from its window, and drops the pages that no reader wants.
func (a *Ahead) detach(r *Reader) {
	if _, ok := r.window.at[r]; ok {
		delete(r.window.at, r)
		a.attached--
		a.trim(r.window)
	}
}

// trim drops the pages of a window that no reader wants.
func (a *Ahead) trim(w *window) { a.used -= w.trim() }

// fail drops a window's pages and readers after a failed read. Each consumer then reads for
// itself, and gets the error on its own connection.
func (a *Ahead) fail(w *window, err error) {
	a.lastError = err
	a.attached -= len(w.at)
	clear(w.at)
	a.trim(w)
}

// Await waits until nothing is being read for the reader. It returns the number of pages in
// the reader's window, and the error of the latest failed read.
func (r *Reader) Await() (pages int, err error) {
	for reading := r.Reading(); len(reading) > 0; reading = r.Reading() {
		<-reading[0].done
	}
	r.ahead.mu.Lock()
	defer r.ahead.mu.Unlock()
	for _, s := range r.window.stretches {
		pages += len(s.pages)
	}
	return pages, r.ahead.lastError
}
