package reader

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/store"
)

// Ahead reads the log ahead of the consumers of a worker, each stretch once for
// all of them that come by. Each takes pages at its own pace.
//
// It reads only what is final: at or below Safe, and before the first doubt. What
// is missing there is void, for every consumer and under every later Value of the
// incarnation. So a page that one consumer caused is true for all others.
//
// Consumers of all events share one window, and one connection at a time. One
// whose events the log filters has a window of its own, or one for all its shares:
// what it passes over is not read at all, which is worth more than sharing.
type Ahead struct {
	log    store.BoundLog
	batch  int
	value  func() *frontier.Value
	conns  Conns
	memory int // bytes of events that are kept at most, all windows together

	mu        sync.Mutex
	used      int // bytes, of these
	attached  int // readers
	unscoped  *window
	shared    map[string]*window // by types, of shares
	lastError error
}

// Conns lends connections for reading ahead.
type Conns interface {
	// Take waits for its turn, and returns a connection that is made at the
	// first statement.
	Take(ctx context.Context) (OwnConn, error)
}

// OwnConn is a connection for one stretch.
type OwnConn interface {
	store.Querier
	// Bounded runs a read on the connection, and ends it if there is no answer.
	Bounded(ctx context.Context, read func(ctx context.Context) error) error
	// GiveBack returns the connection after reads that ended with err.
	GiveBack(err error)
}

// NewAhead returns an Ahead that has read nothing yet. It makes pages of at most
// batch events, under the latest Value, on connections of conns, and keeps so many
// bytes of them.
func NewAhead(log store.BoundLog, batch int, value func() *frontier.Value, conns Conns, memory int) *Ahead {
	a := &Ahead{log: log, batch: batch, value: value, conns: conns, memory: memory}
	a.unscoped = newWindow(newView(log, nil))
	return a
}

// Reader returns the reader of a consumer that wants events of types, of all
// types if there are none, and of these its share; nil: all. Close it.
func (a *Ahead) Reader(types []string, mine *Share) *Reader {
	r := &Reader{view: newView(a.log, types), ahead: a, window: a.unscoped}
	r.mine = mine
	switch {
	case r.scoped && mine != nil:
		r.window = a.ofTypes(types)
	case r.scoped:
		r.window = newWindow(newView(a.log, types))
	}
	return r
}

// ofTypes returns the window that all shares of some types have.
func (a *Ahead) ofTypes(types []string) *window {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := strings.Join(types, "\x00") // which no type has
	if a.shared == nil {
		a.shared = map[string]*window{}
	}
	if a.shared[key] == nil {
		a.shared[key] = newWindow(newView(a.log, types))
	}
	return a.shared[key]
}

// Begin begins to read what follows position after, unless somebody has. before
// is what comes before it.
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

// Take returns the page that follows position at, as the incarnation token has
// it, and the Value that it was read under. It waits while that page is being
// read. If nobody reads it, it returns no Value: the consumer reads for itself.
//
// The loop holds no connection meanwhile: all loops waiting with one in hand for
// another could wait for ever.
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

// take is Take, but for the wait.
func (r *Reader) take(ctx context.Context, at int64, token string) (p Page, v *frontier.Value, wait <-chan struct{}) {
	a, w := r.ahead, r.window
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := w.at[r]; !ok {
		return Page{}, nil, nil
	}
	w.at[r] = at
	s := w.covering(at)
	if s == nil && w.crowded {
		a.readOn(ctx, w)
	}
	if reading := w.reading(); s == nil && reading != nil {
		return Page{}, nil, reading.read // it may be this one, or this one comes next
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
	p, v = r.own(p), s.v
	if r.mine != nil {
		p, v = r.fill(p, v)
	}
	if w.at[r] = p.Look.Through; !p.Full {
		a.detach(r)
	} else {
		a.trim(w)
	}
	a.readOn(ctx, w)
	return p, v, nil
}

// own makes a page of the window the reader's: with the events that it wants, and
// with nothing that a handler may write into and others may still be given.
func (r *Reader) own(p Page) Page {
	r.window.at[r] = p.Look.Through
	shared, filters := r.window.wanted(p.Look.Through), len(r.types) > 0 && !r.scoped
	switch {
	case r.mine != nil:
		r.keepShare(&p)
	case filters:
		p.keep(r.wants)
	case shared:
		p.Events = slices.Clone(p.Events)
	}
	if shared {
		p.own()
	}
	return p
}

// pagesJoined is how many pages of the window make one for a part at most.
const pagesJoined = 64

// fill joins a part's page with those behind it that are there, as long as the
// part's events of them fit into a batch: so its batches are as large as those of
// a whole consumer. All positions of the window are final, so the later Value
// holds for the earlier pages.
func (r *Reader) fill(p Page, v *frontier.Value) (Page, *frontier.Value) {
	for n := 1; n < pagesJoined && p.Full && len(p.Events) < r.ahead.batch; n++ {
		s := r.window.covering(p.Look.Through)
		if s == nil || !s.isCounted || s.v.Token != v.Token {
			break
		}
		next, ok := s.page(p.Look.Through)
		if !ok || r.countShare(&next) > r.ahead.batch-len(p.Events) {
			break
		}
		p, v = p.join(r.own(next)), s.v
	}
	return p, v
}

// Drop ends the following.
func (r *Reader) Drop() {
	r.ahead.mu.Lock()
	defer r.ahead.mu.Unlock()
	r.ahead.detach(r)
}

// Close is Drop at the end of the consumer's loop. The last that leaves ends the
// reads under way, and waits for their end.
func (r *Reader) Close() {
	a := r.ahead
	a.mu.Lock()
	a.detach(r)
	var left []*Stretch
	if len(r.window.at) == 0 {
		left = append(left, r.window.flying...)
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
	return append([]*Stretch(nil), r.window.flying...)
}

// detach ends a reader's following, and drops what nobody wants then.
func (a *Ahead) detach(r *Reader) {
	if _, ok := r.window.at[r]; ok {
		delete(r.window.at, r)
		a.attached--
		a.trim(r.window)
	}
}

// trim drops the pages of a window that nobody wants any more.
func (a *Ahead) trim(w *window) { a.used -= w.trim() }

// fail drops all that a window has, after a read that failed: each consumer reads
// for itself, and meets the error on its own connection.
func (a *Ahead) fail(w *window, err error) {
	a.lastError = err
	a.attached -= len(w.at)
	clear(w.at)
	a.trim(w)
}

// Await waits until nothing is being read for the reader, and returns how many
// pages lie before it, and what the latest read that failed has met.
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
