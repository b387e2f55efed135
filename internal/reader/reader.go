package reader

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/bounded"
	"github.com/pgfrontier/worker/store"
)

// Reader reads the log for one consumer.
type Reader struct {
	log   store.BoundLog
	types []string // that the consumer wants; none: all
	batch int      // events of a page at most
	value func() *frontier.Value
	conns Conns

	sized bounded.Reader // of all its reads
	ahead *Stretch       // that is read ahead; nil: none
}

// New makes the Reader of a consumer that wants events of types, of all types if
// there are none, and takes them in batches. What is read ahead is read under
// the latest Value, on connections of conns.
func New(log store.BoundLog, types []string, batch int, value func() *frontier.Value, conns Conns) *Reader {
	return &Reader{log: log, types: types, batch: batch, value: value, conns: conns}
}

// Conn is a connection to read on.
type Conn interface {
	store.Querier
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// Place is where a page begins and how far it may go.
type Place struct {
	Position int64         // the consumer's
	Open     []store.Range // that it has passed while they were in doubt
	Limit    int           // events at most
	Bound    int64         // the page reaches no further; Unbounded: as far as is safe
}

// Unbounded is no Bound.
const Unbounded = math.MaxInt64

// Read reads what is new for the consumer, and which of its open positions have
// appeared. v was published before: that is what gives a missing position its
// meaning.
//
// The late ones are read last. The next version of an aggregate cannot commit
// before the late one, so a later snapshot than that which showed the next
// shows the late one too, and the order within the aggregate is kept.
func (r *Reader) Read(ctx context.Context, conn Conn, v *frontier.Value, from Place) (Page, error) {
	upTo := min(v.Safe, from.Bound)
	p := Page{Look: frontier.Page{Checkpoint: from.Position, Through: from.Position}}
	if upTo > from.Position {
		pages, counted, err := r.lookAhead(ctx, conn, v, span{from.Position, upTo}, from.Limit, 1, len(from.Open) > 0)
		if err == nil && !counted {
			err = r.countMissing(ctx, conn, v, pages)
		}
		if err != nil {
			return Page{}, err
		}
		p = pages[0]
	}
	if len(from.Open) == 0 {
		return p, nil
	}
	asked := r.sized.Limit(from.Limit)
	late, err := readOpen(ctx, conn, r.at(v), from.Open, asked)
	if err != nil {
		return Page{}, fmt.Errorf("worker: read late events: %w", err)
	}
	r.sized.Took(late)
	p = p.withLate(late, from.Open, from.Limit, len(late) == asked, r.wants)
	if from.Bound < Unbounded && upTo < min(from.Position, p.Look.Through) {
		p.EndAt(upTo) // what is visible now is late also above Safe, which may be behind another owner's
	}
	return p, nil
}

// at is the log as the incarnation of v has it.
func (r *Reader) at(v *frontier.Value) store.Log { return r.log.At(v.Token) }

// span are the positions in (after, upTo].
type span struct{ after, upTo int64 }

// lookAhead reads what lies ahead, in up to n pages of at most limit events. If
// they do not tell what they miss, it is to be counted. watching: the consumer
// has open ranges.
func (r *Reader) lookAhead(ctx context.Context, q store.Querier, v *frontier.Value, ahead span, limit, n int, watching bool) (pages []Page, counted bool, err error) {
	if events, ok := v.Since(ahead.after); ok && !watching {
		return []Page{share(events, v, ahead, limit, r.wants)}, true, nil
	}
	if within := countable(v, ahead); r.scoped() && !watching && within.after < within.upTo {
		pages, err = r.lookAtSome(ctx, q, v, within, ahead.upTo, limit, n)
		return pages, false, err
	}
	pages, err = r.lookAtAll(ctx, q, v, ahead, limit, n)
	return pages, true, err
}

// lookAtAll reads all events of what lies ahead.
func (r *Reader) lookAtAll(ctx context.Context, q store.Querier, v *frontier.Value, ahead span, limit, pagesAtMost int) ([]Page, error) {
	events, more, err := r.sized.Events(ctx, r.at(v), q, ahead.after, limit*pagesAtMost)
	if err != nil {
		return nil, fmt.Errorf("worker: read events: %w", err)
	}
	var pages []Page
	for after := ahead.after; ; {
		n := min(limit, len(events))
		p := cut(events[:n:n], after, ahead.upTo, limit, more || n < len(events), r.wants)
		events = events[n:]
		again := p.Full && len(events) > 0
		after, p.Full = p.Look.Through, p.Full || p.Look.Through < v.Safe
		if pages = append(pages, p); !again {
			return pages, nil
		}
	}
}

// wants reports whether the consumer wants events of a type.
func (r *Reader) wants(aggregateType string) bool {
	return len(r.types) == 0 || slices.Contains(r.types, aggregateType)
}
