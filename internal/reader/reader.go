package reader

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"math"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/bounded"
	"github.com/pgfrontier/worker/store"
)

// Reader reads the log for one consumer.
type Reader struct {
	view
	ahead  *Ahead
	window *window // the window of its pages
}

// Place is the start and the bounds of a page.
type Place struct {
	Position int64         // the consumer's position
	Open     []store.Range // passed by the consumer while in doubt
	Limit    int           // most events of the page
	Bound    int64         // highest position of the page; Unbounded: up to Safe
	Exact    bool          // read no more than Limit events, even if few of them are the consumer's
}

// Unbounded is a Place.Bound without effect.
const Unbounded = math.MaxInt64

// Read reads the new events of the consumer, and the events that have appeared in its open
// ranges. v must have been published before the read, so that a missing position is void or in
// doubt under v.
//
// The late events are read last. The next version of an aggregate cannot commit before the
// late version. So a snapshot that is later than the snapshot of the next version shows the
// late version, too. This keeps the order within the aggregate.
func (r *Reader) Read(ctx context.Context, conn Conn, v *frontier.Value, from Place) (Page, error) {
	r.exact = from.Exact
	upTo := min(v.Safe, from.Bound)
	p := Page{Positions: frontier.Page{Checkpoint: from.Position, Through: from.Position}}
	if upTo > from.Position {
		var err error
		if p, err = r.readNew(ctx, conn, v, span{from.Position, upTo}, from); err != nil {
			return Page{}, err
		}
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
	if from.Bound < Unbounded && upTo < min(from.Position, p.Positions.Through) {
		p.EndAt(upTo) // late events may lie above Safe, which may be behind another owner's Safe
	}
	return p, nil
}

// readNew reads a page of new events.
func (r *Reader) readNew(ctx context.Context, conn Conn, v *frontier.Value, ahead span, from Place) (Page, error) {
	watching := len(from.Open) > 0
	if events, ok := v.Since(ahead.after); ok && !watching {
		return pageOfTail(events, v, ahead, from.Limit, r.wants), nil
	}
	pages, counted, err := r.readAhead(ctx, conn, v, ahead, from.Limit, 1, bounded.MaxBytes, watching)
	if err == nil && !counted {
		err = r.countMissing(ctx, conn, v, pages)
	}
	if err != nil {
		return Page{}, err
	}
	if r.share != nil && !counted {
		pages[0].keep(r.wants)
	}
	return pages[0], nil
}

// Fingerprint distinguishes an event from every other event, even in a log that derives event
// ids from positions.
type Fingerprint [sha256.Size]byte

// FingerprintOf returns the fingerprint of an event of the log.
func FingerprintOf(e *store.PersistedEvent) (f Fingerprint) {
	h := sha256.New()
	fmt.Fprintf(h, "%d %v %q %q %d %q %d %d ", e.GlobalPosition, e.EventID, e.AggregateType, e.AggregateID, e.AggregateVersion, e.EventType, e.EventVersion, e.CreatedAt.UnixMicro())
	_, _ = h.Write(e.Payload)
	h.Sum(f[:0])
	return f
}

// IsLast reports whether the event at a position is unchanged and is the last wanted event up
// to upTo. It returns false if one page of the log does not decide this.
func (r *Reader) IsLast(ctx context.Context, q store.Querier, token string, position int64, f Fingerprint, upTo int64, limit int) (bool, error) {
	is, found, err := r.EventAt(ctx, q, token, position)
	if err != nil || !found || is != f {
		return false, err
	}
	if position >= upTo {
		return true, nil
	}
	log, limit := r.log.At(token), r.sized.Limit(max(limit, 2))
	var events []store.PersistedEvent
	if r.scoped {
		var page store.ScopedPage
		page, err = log.(store.ScopedReader).ReadScoped(ctx, q, store.ScopedRange{After: position, UpTo: upTo, Types: r.types, Limit: limit})
		events = page.Events
	} else {
		events, err = log.ReadEvents(ctx, q, position, limit)
	}
	if err != nil {
		return false, fmt.Errorf("worker: read the events after position %d: %w", position, err)
	}
	r.sized.Took(events)
	for i := range events {
		switch e := &events[i]; {
		case e.GlobalPosition > upTo:
			return true, nil
		case r.wants(e):
			return false, nil
		}
	}
	return len(events) < limit, nil
}

// EventAt reads the event at a position, whatever its type.
func (r *Reader) EventAt(ctx context.Context, q store.Querier, token string, position int64) (f Fingerprint, found bool, err error) {
	events, err := r.log.At(token).ReadEvents(ctx, q, position-1, 1)
	switch {
	case err != nil:
		return f, false, fmt.Errorf("worker: read the event at position %d: %w", position, err)
	case len(events) == 0 || events[0].GlobalPosition != position:
		return f, false, nil
	}
	return FingerprintOf(&events[0]), true, nil
}

// Recount counts the missing positions of a page up to through, if the page's sum reaches
// further. Call it before the page is cut at through. token is the incarnation that must
// answer.
func (r *Reader) Recount(ctx context.Context, q store.Querier, token string, p *Page, through int64) (err error) {
	if p.Void.Count == 0 || through < p.Void.First || through >= p.Void.Last {
		return nil
	}
	if p.Void, err = r.log.At(token).(store.ScopedReader).CountMissing(ctx, q, p.Positions.Checkpoint, through); err != nil {
		return fmt.Errorf("worker: count missing positions: %w", err)
	}
	return nil
}

// Conn is a connection for reads.
type Conn interface {
	store.Querier
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}
