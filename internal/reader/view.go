package reader

import (
	"context"
	"fmt"
	"slices"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/bounded"
	"github.com/pgfrontier/worker/store"
)

// view is the log as a consumer of some types reads it.
type view struct {
	log    store.BoundLog
	types  []string        // empty: all types
	share  *Share          // nil: all events of these types
	failed error           // why the slot of an event is unknown
	scoped bool            // the log can filter by type
	exact  bool            // the current read is bounded by its Limit, not by its share of it
	sized  *bounded.Reader // bounds the size of all reads
}

func newView(log store.BoundLog, types []string) view {
	_, scoped := log.At("").(store.ScopedReader)
	return view{log: log, types: types, scoped: scoped && len(types) > 0, sized: &bounded.Reader{}}
}

// Share is the part of a consumer's events that a reader wants: the events of a range of
// slots.
type Share struct {
	Of    string // the consumer; all its shares have the same Slot
	Slot  func(*store.PersistedEvent) (slot int, err error)
	First int // slot
	Last  int // slot
	OneIn int // about one in this many of the consumer's events belongs to the share
}

// at returns the log in the incarnation of v.
func (r *view) at(v *frontier.Value) store.Log { return r.log.At(v.Token) }

// readAhead reads up to n pages of at most limit events. counted reports whether the pages
// have their missing positions; otherwise the caller counts them. watching reports whether the
// consumer has open ranges.
func (r *view) readAhead(ctx context.Context, q store.Querier, v *frontier.Value, ahead span, limit, n, maxBytes int, watching bool) (pages []Page, counted bool, err error) {
	if within := countable(v, ahead); r.scoped && !watching && within.after < within.upTo {
		pages, err = r.readScoped(ctx, q, v, within, ahead.upTo, limit, n, maxBytes)
		return pages, false, err
	}
	pages, err = r.readAll(ctx, q, v, ahead, limit, n, maxBytes)
	return pages, true, err
}

// readAll reads events of all types. For a share it returns one page, with about as many of
// the share's events as another page has events.
func (r *view) readAll(ctx context.Context, q store.Querier, v *frontier.Value, ahead span, limit, pagesAtMost, maxBytes int) ([]Page, error) {
	read := limit * pagesAtMost
	if r.share != nil && !r.exact {
		read *= min(r.share.OneIn, max(1, maxEventsAhead/read))
	}
	events, more, err := r.sized.Events(ctx, r.at(v), q, ahead.after, read, maxBytes)
	if err != nil {
		return nil, fmt.Errorf("worker: read events: %w", err)
	}
	if r.share != nil {
		p := cut(events, ahead.after, ahead.upTo, limit, more, r.wants)
		p.Full = p.Full || p.Positions.Through < v.Safe
		return []Page{p}, nil
	}
	var pages []Page
	for after := ahead.after; ; {
		n := min(limit, len(events))
		p := cut(events[:n:n], after, ahead.upTo, limit, more || n < len(events), r.wants)
		events = events[n:]
		again := p.Full && len(events) > 0
		after, p.Full = p.Positions.Through, p.Full || p.Positions.Through < v.Safe
		if pages = append(pages, p); !again {
			return pages, nil
		}
	}
}

// wants reports whether the consumer wants an event. It returns true if the slot of the event
// is unknown, and Failure then returns the reason.
func (r *view) wants(e *store.PersistedEvent) bool {
	return r.wantsType(e) && (r.share == nil || r.wantsSlot(e, r.slot(e)))
}

func (r *view) wantsType(e *store.PersistedEvent) bool {
	return len(r.types) == 0 || slices.Contains(r.types, e.AggregateType)
}

// noSlot is an unknown slot.
const noSlot = 1<<16 - 1

func (r *view) slot(e *store.PersistedEvent) uint16 {
	slot, err := r.share.Slot(e)
	if err != nil {
		return noSlot
	}
	return uint16(slot)
}

func (r *view) wantsSlot(e *store.PersistedEvent, slot uint16) bool {
	at := int(slot)
	if slot == noSlot {
		again, err := r.share.Slot(e)
		if err != nil {
			r.failed = err
			return true
		}
		at = again // the key function failed only once
	}
	return r.share.First <= at && at <= r.share.Last
}

// Failure returns why the slot of an event of the last read is unknown, and resets the reason.
func (r *view) Failure() error {
	err := r.failed
	r.failed = nil
	return err
}

// slotsIn returns the slots of a page's events.
func (r *view) slotsIn(p *Page) []uint16 {
	events, all := p.Events, []uint16(nil)
	if p.slots != nil {
		events, all = p.slots.events, p.slots.of[r.share.Of]
	}
	if all == nil {
		all = make([]uint16, len(events))
		for i := range events {
			all[i] = r.slot(&events[i])
		}
		if p.slots != nil && p.slots.of == nil {
			p.slots.of = map[string][]uint16{}
		}
		if p.slots != nil {
			p.slots.of[r.share.Of] = all
		}
	}
	return all[len(all)-len(p.Events):] // the page may have been shortened at its start
}

// countShare returns the number of events of a page that belong to the share.
func (r *view) countShare(p *Page) (n int) {
	for i, slot := range r.slotsIn(p) {
		if e := &p.Events[i]; r.wantsType(e) && r.wantsSlot(e, slot) {
			n++
		}
	}
	return n
}

// keepShare drops the events of a page that do not belong to the share.
func (r *view) keepShare(p *Page) {
	kept := make([]store.PersistedEvent, 0, r.countShare(p))
	for i, slot := range r.slotsIn(p) {
		if e := &p.Events[i]; r.wantsType(e) && r.wantsSlot(e, slot) {
			kept = append(kept, *e)
		}
	}
	p.Events, p.slots = kept, nil
}
