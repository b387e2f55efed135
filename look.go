package worker

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/bounded"
	"github.com/pgfrontier/worker/store"
)

// page is what one look at the log found for a consumer.
type page struct {
	events []store.PersistedEvent // to be handled, in order of position
	look   frontier.Page
	// void sums up what is missing where that is known as a sum only. There
	// are no doubts and no open ranges then.
	void store.Missing
	full bool          // there is probably more
	took time.Duration // to read it

	letters []letter // to be put among the dead letters
	joined  int      // aggregates that had none before
	retried *retry   // the dead letter that events consists of; nil: it does not
}

// scopedStretch is how many positions a scoped consumer crosses in one step at
// most: a fraction of a second's counting.
const scopedStretch = 1 << 20

// scopedSight is how many events of a scoped consumer are read ahead in one
// statement, if a batch has not more: all that lies between them is counted
// before the first is handled.
const scopedSight = 1_000

// log is the log as the incarnation of v has it.
func (c *consumerLoop) log(v *frontier.Value) store.Log { return c.w.bound.At(v.Token) }

// lookAround reads what is new for the consumer, and which of its open
// positions have appeared. v was published before: that is what gives a
// missing position its meaning.
//
// The late ones are read last. The next version of an aggregate cannot commit
// before the late one, so a later snapshot than that which showed the next
// shows the late one too, and the order within the aggregate is kept.
func (c *consumerLoop) lookAround(ctx context.Context, conn *sql.Conn, v *frontier.Value) (page, error) {
	from, limit, upTo := c.progress, c.tally.suspect.size(c.w.cfg.BatchSize), c.tally.suspect.upTo(v.Safe)
	p := page{look: frontier.Page{Checkpoint: from.position, Through: from.position}}
	if upTo > from.position {
		pages, counted, err := c.lookAhead(ctx, conn, v, span{from.position, upTo}, limit, 1, len(from.open) > 0)
		if err == nil && !counted {
			err = c.countMissing(ctx, conn, v, pages)
		}
		if err != nil {
			return page{}, err
		}
		p = pages[0]
	}
	if len(from.open) == 0 {
		return p, nil
	}
	asked := c.reads.Limit(limit)
	late, err := readOpen(ctx, conn, c.log(v), from.open, asked)
	if err != nil {
		return page{}, fmt.Errorf("worker: read late events: %w", err)
	}
	c.reads.Took(late)
	p = p.withLate(late, from.open, limit, len(late) == asked, c.unit.wants)
	if c.tally.suspect.active() && upTo < min(from.position, p.look.Through) {
		p.endAt(upTo) // what is visible now is late also above Safe, which may be behind another owner's
	}
	return p, nil
}

// span are the positions in (after, upTo].
type span struct{ after, upTo int64 }

// lookAhead reads what lies ahead, in up to n pages of at most limit events. If
// they do not tell what they miss, it is to be counted. watching: the consumer
// has open ranges.
func (c *consumerLoop) lookAhead(ctx context.Context, q store.Querier, v *frontier.Value, ahead span, limit, n int, watching bool) (pages []page, counted bool, err error) {
	if events, ok := v.Since(ahead.after); ok && !watching {
		return []page{share(events, v, ahead, limit, c.unit.wants)}, true, nil
	}
	if within := countable(v, ahead); c.scoped() && !watching && within.after < within.upTo {
		pages, err = c.lookAtSome(ctx, q, v, within, ahead.upTo, limit, n)
		return pages, false, err
	}
	pages, err = c.lookAtAll(ctx, q, v, ahead, limit, n)
	return pages, true, err
}

// scoped: the log can leave out what the consumer does not want.
func (c *consumerLoop) scoped() bool {
	_, ok := c.w.log.(store.ScopedReader)
	return ok && len(c.unit.types) > 0
}

// countable is the part of what lies ahead in which the database counts what is
// missing. It counts every position, so the part is bounded, to keep the
// statement short; and it finds only a sum, so not into doubts.
func countable(v *frontier.Value, ahead span) span {
	ahead.upTo = min(ahead.upTo, ahead.after+scopedStretch)
	if doubts := v.InDoubt(ahead.after, ahead.upTo); len(doubts) > 0 {
		ahead.upTo = doubts[0].First - 1
	}
	return ahead
}

// lookAtSome reads what the consumer wants of a countable part of what lies
// ahead up to a position.
func (c *consumerLoop) lookAtSome(ctx context.Context, q store.Querier, v *frontier.Value, within span, upTo int64, limit, n int) (pages []page, err error) {
	n = min(n, max(1, scopedSight/limit))
	r, err := c.log(v).(store.ScopedReader).ReadScoped(ctx, q, store.ScopedRange{After: within.after, UpTo: within.upTo, Types: c.unit.types, Limit: c.reads.Limit(limit * n), MaxBytes: bounded.MaxBytes})
	if err != nil {
		return nil, fmt.Errorf("worker: read events: %w", err)
	}
	c.reads.Took(r.Events)
	if r.Through == within.after+scopedStretch {
		if r.Through, err = c.acrossHole(ctx, q, v, r, upTo); err != nil {
			return nil, err
		}
	}
	after := within.after
	for events := range slices.Chunk(r.Events, limit) {
		through := r.Through
		if len(events) == limit {
			through = events[limit-1].GlobalPosition
		}
		pages = append(pages, page{events: events, look: frontier.Page{Checkpoint: after, Through: through}, full: through < v.Safe})
		after = through
	}
	if after < r.Through || len(pages) == 0 {
		pages = append(pages, page{look: frontier.Page{Checkpoint: after, Through: r.Through}, full: r.Through < v.Safe})
	}
	return pages, nil
}

// acrossHole returns how far a page reaches that ends with a whole stretch. If
// no event of any type stands behind its last one in the stretch, the page goes
// on to the next event, upTo at most, however far the sequence has jumped: what
// is missing in between costs nothing to count.
func (c *consumerLoop) acrossHole(ctx context.Context, q store.Querier, v *frontier.Value, r store.ScopedPage, upTo int64) (through int64, err error) {
	last := r.Through - scopedStretch
	if n := len(r.Events); n > 0 {
		last = r.Events[n-1].GlobalPosition
	}
	next, err := c.log(v).ReadEvents(ctx, q, last, 1)
	if err != nil {
		return 0, fmt.Errorf("worker: read the event behind a gap: %w", err)
	}
	if len(next) > 0 {
		upTo = min(upTo, next[0].GlobalPosition-1)
	}
	if doubts := v.InDoubt(last, upTo); len(doubts) > 0 {
		upTo = doubts[0].First - 1
	}
	return max(upTo, r.Through), nil
}

// countMissing sums up what each of the pages misses, which follow one another.
// It counts them all at once, and again only those in which it may be. That may
// be another snapshot than the pages': whatever is missing in any that is later
// than v is void.
func (c *consumerLoop) countMissing(ctx context.Context, q store.Querier, v *frontier.Value, pages []page) error {
	log := c.log(v).(store.ScopedReader)
	all, err := log.CountMissing(ctx, q, pages[0].look.Checkpoint, pages[len(pages)-1].look.Through)
	for i := 0; i < len(pages) && err == nil; i++ {
		p := &pages[i]
		after, through := p.look.Checkpoint, p.look.Through
		switch {
		case all.Count == 0 || through < all.First || after >= all.Last:
		case after < all.First && through >= all.Last:
			p.void = all
		default:
			p.void, err = log.CountMissing(ctx, q, after, through)
		}
	}
	if err != nil {
		return fmt.Errorf("worker: count missing positions: %w", err)
	}
	return nil
}

func (c *consumerLoop) lookAtAll(ctx context.Context, q store.Querier, v *frontier.Value, ahead span, limit, pagesAtMost int) ([]page, error) {
	events, more, err := c.reads.Events(ctx, c.log(v), q, ahead.after, limit*pagesAtMost)
	if err != nil {
		return nil, fmt.Errorf("worker: read events: %w", err)
	}
	var pages []page
	for after := ahead.after; ; {
		n := min(limit, len(events))
		p := cut(events[:n:n], after, ahead.upTo, limit, more || n < len(events), c.unit.wants)
		events = events[n:]
		again := p.full && len(events) > 0
		after, p.full = p.look.Through, p.full || p.look.Through < v.Safe
		if pages = append(pages, p); !again {
			return pages, nil
		}
	}
}

// cut makes a page of what a read returned: nothing above upTo, only the types
// that are wanted, and the gaps between all of them. more: others may follow.
func cut(events []store.PersistedEvent, after, upTo int64, limit int, more bool, wants func(aggregateType string) bool) page {
	p := page{look: frontier.Page{Checkpoint: after, Through: upTo}}
	if n := len(events); more && n > 0 && events[n-1].GlobalPosition < upTo {
		p.look.Through, p.full = events[n-1].GlobalPosition, true
	}
	p.fill(events[:0], events, limit, wants)
	return p
}

// share makes a page of what the frontier has read for all consumers.
func share(events []store.PersistedEvent, v *frontier.Value, ahead span, limit int, wants func(aggregateType string) bool) page {
	p := page{look: frontier.Page{Checkpoint: ahead.after, Through: ahead.upTo}}
	p.fill(nil, events, limit, wants)
	p.full = p.look.Through < v.Safe
	p.own()
	return p
}

// fill appends those events of the page to kept that are wanted, and finds the
// gaps between all of them. The page ends with the last event for which there
// is room.
func (p *page) fill(kept, events []store.PersistedEvent, limit int, wants func(aggregateType string) bool) {
	last := p.look.Checkpoint
	for i := range events {
		position := events[i].GlobalPosition
		if position > p.look.Through {
			break
		}
		p.gap(last+1, position-1)
		last = position
		if !wants(events[i].AggregateType) {
			continue
		}
		if kept = append(kept, events[i]); len(kept) == limit {
			p.look.Through = position
			break
		}
	}
	p.gap(last+1, p.look.Through)
	p.events = kept
}

// own gives the page bytes of its own, all in one piece: a handler that writes
// into a payload must not change what others are given.
func (p *page) own() {
	n := 0
	for i := range p.events {
		n += len(p.events[i].Payload) + len(p.events[i].Metadata)
	}
	piece := make([]byte, 0, n)
	copied := func(b []byte) []byte {
		if b == nil {
			return nil
		}
		start := len(piece)
		piece = append(piece, b...)
		return piece[start:len(piece):len(piece)]
	}
	for i := range p.events {
		e := &p.events[i]
		e.Payload, e.Metadata = copied(e.Payload), copied(e.Metadata)
	}
}

func (p *page) gap(first, last int64) {
	if first <= last {
		p.look.Missing = append(p.look.Missing, store.Range{First: first, Last: last})
	}
}

// withLate puts late events in front of a page, and keeps it within limit. more:
// there may be other late ones behind them.
func (p page) withLate(late []store.PersistedEvent, open []openRange, limit int, more bool, wants func(aggregateType string) bool) page {
	for _, o := range open {
		p.look.Open = append(p.look.Open, o.Range)
	}
	for i := range late {
		p.look.Found = append(p.look.Found, late[i].GlobalPosition)
	}
	if more && len(late) > 0 {
		// Perhaps not all: nothing newer before the rest of them.
		p.events, p.full = nil, true
		p.look.Through, p.look.Missing = late[len(late)-1].GlobalPosition, nil
	} else if room := limit - len(late); len(p.events) > room {
		p.events, p.full = p.events[:room], true
		p.look.Through = p.events[room-1].GlobalPosition
	}
	late = slices.DeleteFunc(late, func(e store.PersistedEvent) bool { return !wants(e.AggregateType) })
	p.events = append(late, p.events...)
	return p
}

// readOpen returns at most limit visible events in the open ranges, in order
// of position and from one snapshot: of two late events of one aggregate the
// second never shows without the first.
func readOpen(ctx context.Context, conn *sql.Conn, log store.Log, open []openRange, limit int) ([]store.PersistedEvent, error) {
	if r, ok := log.(store.RangeReader); ok {
		ranges := make([]store.Range, len(open))
		for i, o := range open {
			ranges[i] = o.Range
		}
		return r.ReadRanges(ctx, conn, ranges, limit)
	}
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }() // a no-op after Commit
	var late []store.PersistedEvent
	for _, o := range open {
		for after := o.First - 1; after < o.Last && len(late) < limit; {
			events, err := log.ReadEvents(ctx, tx, after, limit-len(late))
			if err != nil {
				return nil, err
			}
			after = o.Last // unless there may be more of it
			for i := range events {
				if events[i].GlobalPosition > o.Last {
					break
				}
				late = append(late, events[i])
			}
		}
	}
	return late, tx.Commit()
}
