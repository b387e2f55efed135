package reader

import (
	"context"
	"fmt"
	"slices"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/bounded"
	"github.com/pgfrontier/worker/store"
)

// view is the log as somebody reads it who wants events of some types.
type view struct {
	log    store.BoundLog
	types  []string        // none: all
	mine   *Share          // nil: all of these types
	failed error           // why the slot of an event is not known
	scoped bool            // the log can leave out all others
	exact  bool            // the present read is bounded by its Limit, not by the share of it
	sized  *bounded.Reader // of all reads
}

func newView(log store.BoundLog, types []string) view {
	_, scoped := log.At("").(store.ScopedReader)
	return view{log: log, types: types, scoped: scoped && len(types) > 0, sized: &bounded.Reader{}}
}

// Share is the part of a consumer's events that a reader wants: those with some
// slots.
type Share struct {
	Of    string // the consumer; all shares of it have the same Slot
	Slot  func(*store.PersistedEvent) (slot int, err error)
	First int // slot
	Last  int // slot
	OneIn int // about as many of the consumer's events, one is of the share
}

// at is the log as the incarnation of v has it.
func (r *view) at(v *frontier.Value) store.Log { return r.log.At(v.Token) }

// span are the positions in (after, upTo].
type span struct{ after, upTo int64 }

// lookAhead reads what lies ahead, in up to n pages of at most limit events. If
// they do not tell what they miss, it is to be counted. watching: the consumer
// has open ranges.
func (r *view) lookAhead(ctx context.Context, q store.Querier, v *frontier.Value, ahead span, limit, n, maxBytes int, watching bool) (pages []Page, counted bool, err error) {
	if within := countable(v, ahead); r.scoped && !watching && within.after < within.upTo {
		pages, err = r.lookAtSome(ctx, q, v, within, ahead.upTo, limit, n, maxBytes)
		return pages, false, err
	}
	pages, err = r.lookAtAll(ctx, q, v, ahead, limit, n, maxBytes)
	return pages, true, err
}

// lookAtAll reads all events of what lies ahead: for a share in one page, of
// about as many events that it has as a page of all would have.
func (r *view) lookAtAll(ctx context.Context, q store.Querier, v *frontier.Value, ahead span, limit, pagesAtMost, maxBytes int) ([]Page, error) {
	read := limit * pagesAtMost
	if r.mine != nil && !r.exact {
		read *= min(r.mine.OneIn, max(1, farSight/read))
	}
	events, more, err := r.sized.Events(ctx, r.at(v), q, ahead.after, read, maxBytes)
	if err != nil {
		return nil, fmt.Errorf("worker: read events: %w", err)
	}
	if r.mine != nil {
		p := cut(events, ahead.after, ahead.upTo, limit, more, r.wants)
		p.Full = p.Full || p.Look.Through < v.Safe
		return []Page{p}, nil
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

// wants reports whether the consumer wants an event. It also does if that is not
// known: then Failure says why.
func (r *view) wants(e *store.PersistedEvent) bool {
	return r.wantsType(e) && (r.mine == nil || r.wantsSlot(e, r.slot(e)))
}

func (r *view) wantsType(e *store.PersistedEvent) bool {
	return len(r.types) == 0 || slices.Contains(r.types, e.AggregateType)
}

// noSlot stands for a slot that is not known.
const noSlot = 1<<16 - 1

func (r *view) slot(e *store.PersistedEvent) uint16 {
	slot, err := r.mine.Slot(e)
	if err != nil {
		return noSlot
	}
	return uint16(slot)
}

func (r *view) wantsSlot(e *store.PersistedEvent, slot uint16) bool {
	at := int(slot)
	if slot == noSlot {
		again, err := r.mine.Slot(e)
		if err != nil {
			r.failed = err
			return true
		}
		at = again // a key that panicked once
	}
	return r.mine.First <= at && at <= r.mine.Last
}

// Failure returns why it is not known whose the events of the last read are.
func (r *view) Failure() error {
	err := r.failed
	r.failed = nil
	return err
}
