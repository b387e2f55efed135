package reader

import (
	"context"
	"sync"
	"time"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/store"
)

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

// A stretch that is read ahead in one statement has several pages, as long as
// it stays below so many events and, going by the page before it, so many bytes
// of payload and metadata.
const (
	farSight = 4_000
	farBytes = 4 << 20
)

// Stretch is a stretch of pages that follow one another, read while those
// before it are handled.
type Stretch struct {
	at    int64           // where the first of pages begins
	v     *frontier.Value // published before the read
	pages []Page          // not taken yet
	err   error
	end   end
	read  chan struct{} // closed when all is known but what the pages miss
	done  chan struct{} // closed when that is known, too
	next  *Stretch      // the stretch behind it; nil: it has not begun
}

// end is what the stretch behind another one has to know of that.
type end struct {
	at    int64
	more  bool // there is something behind it
	pages int  // that are to be read behind it
}

// Begin begins to read what follows position after, on connections of
// the pool. It ends with intake. before is what comes before it.
func (r *Reader) Begin(intake context.Context, after int64, before []store.PersistedEvent) {
	front := &Stretch{end: end{after, true, stretch(r.batch, before)}, read: make(chan struct{})}
	close(front.read)
	r.readOn(intake, front)
	r.ahead = front.next
}

// readBehind begins to read what follows another stretch, as soon as that is
// read. It may be counted still.
func (r *Reader) readBehind(intake context.Context, front *Stretch) *Stretch {
	a := &Stretch{read: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(a.done)
		<-front.read
		began := time.Now()
		if front.end.more {
			a.err = r.readStretch(intake, front.end, a)
		} else {
			close(a.read)
		}
		for i := range a.pages {
			a.pages[i].Took = time.Since(began) / time.Duration(len(a.pages))
		}
	}()
	return a
}

// readStretch reads a stretch and counts what it misses, on one connection.
func (r *Reader) readStretch(intake context.Context, front end, a *Stretch) (err error) {
	var once sync.Once
	read := func() { once.Do(func() { close(a.read) }) }
	defer read()
	conn, err := r.conns.Take(intake)
	if err != nil {
		return err
	}
	defer func() { conn.GiveBack(err) }()
	var counted bool
	a.at, a.v = front.at, r.value()
	err = conn.Bounded(intake, func(ctx context.Context) (err error) {
		a.pages, counted, err = r.lookAhead(ctx, conn, a.v, span{a.at, a.v.Safe}, r.batch, front.pages, false)
		return err
	})
	if err != nil {
		return err
	}
	if n := len(a.pages); n > 0 {
		last := &a.pages[n-1]
		a.end = end{last.Look.Through, last.Full, stretch(r.batch, last.Events)}
	}
	read()
	if counted {
		return nil
	}
	return conn.Bounded(intake, func(ctx context.Context) error { return r.countMissing(ctx, conn, a.v, a.pages) })
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

// Take waits for the next page that was read ahead and returns it if
// it follows position at in the incarnation token, and the value that it was read
// under; otherwise it waits until nothing is read ahead any more, and returns no
// value. The loop holds no connection meanwhile: all loops waiting with one in hand for
// another could wait for ever.
func (r *Reader) Take(intake context.Context, at int64, token string) (p Page, v *frontier.Value) {
	a := r.ahead
	if a == nil {
		return Page{}, nil
	}
	if <-a.done; !a.follows(at, token) {
		r.Drop()
		return Page{}, nil
	}
	r.readOn(intake, a)
	p, a.pages = a.pages[0], a.pages[1:]
	a.at = p.Look.Through
	if r.ahead = a; len(a.pages) == 0 {
		r.ahead = a.next
	}
	return p, a.v
}

// Drop waits until nothing is read ahead any more, and forgets it.
func (r *Reader) Drop() {
	a := r.ahead
	for r.ahead = nil; a != nil; a = a.next {
		<-a.done
	}
}

// follows reports whether the stretch has pages that go on from at, in the same
// incarnation of the server.
func (a *Stretch) follows(at int64, token string) bool {
	return a.err == nil && len(a.pages) > 0 && a.at == at && a.v.Token == token
}

// readOn begins to read what is behind a stretch whose pages are being taken:
// another one or, where it has to be counted as well, two, so that one is
// counted while the next is read.
func (r *Reader) readOn(intake context.Context, a *Stretch) {
	ahead := 1
	if r.scoped() {
		ahead = 2
	}
	for ; ahead > 0 && a.goesOn(); ahead-- {
		if a.next == nil {
			a.next = r.readBehind(intake, a)
		}
		a = a.next
	}
}

// goesOn: there is more behind the stretch, as far as is known.
func (a *Stretch) goesOn() bool {
	select {
	case <-a.read:
		return a.end.more
	default:
		return true
	}
}

// Ahead returns the first stretch that is read ahead, nil if none is.
func (r *Reader) Ahead() *Stretch { return r.ahead }

// Next returns the stretch behind s, nil if nothing reads it.
func (s *Stretch) Next() *Stretch { return s.next }

// Done returns a channel that is closed when the stretch is read.
func (s *Stretch) Done() <-chan struct{} { return s.done }

// Result returns how many pages were not taken yet of a stretch that is read,
// and what the read failed with.
func (s *Stretch) Result() (pages int, err error) { return len(s.pages), s.err }
