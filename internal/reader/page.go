package reader

import (
	"cmp"
	"slices"
	"time"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/store"
)

// Page is what one look at the log found for a consumer.
type Page struct {
	Events []store.PersistedEvent // to be handled, in order of position: late ones first
	Look   frontier.Page
	// Void sums up what is missing where that is known as a sum only. There
	// are no doubts and no open ranges then.
	Void store.Missing
	Full bool // there is probably more

	slots *slotsOf      // of a page that shares have in common; nil: of no such one
	Took  time.Duration // to read it
}

// Cross decides what going over the page means, under the Value that it was read
// under. It shortens the page where going on would leave more than maxOpen open
// ranges: then blocked is true.
func (p *Page) Cross(v *frontier.Value, maxOpen int) (crossing frontier.Crossing, blocked bool) {
	crossing = v.Cross(p.Look)
	if room := maxOpen - openAfter(crossing, len(p.Look.Open)); room < 0 {
		// Stop before the first range for which there is no room.
		keep := max(len(crossing.Opened)+room, 0)
		if keep < len(crossing.Opened) {
			p.EndAt(max(crossing.Opened[keep].First-1, p.Look.Checkpoint))
			crossing = v.Cross(p.Look)
			blocked = true
		}
	}
	return crossing, blocked
}

// openAfter counts the open ranges after a crossing.
func openAfter(c frontier.Crossing, before int) int {
	n := before + len(c.Opened)
	for _, closed := range c.Closed {
		n += len(closed.Remains) - 1
	}
	return n
}

// EndAt shortens a page.
func (p *Page) EndAt(through int64) {
	p.Look.Through, p.Full = through, true
	for n := len(p.Events); n > 0 && p.Events[n-1].GlobalPosition > through; n-- {
		p.Events = p.Events[:n-1]
	}
	for n := len(p.Look.Found); n > 0 && p.Look.Found[n-1] > through; n-- {
		p.Look.Found = p.Look.Found[:n-1]
	}
}

// cut makes a page of what a read returned: nothing above upTo, only the types
// that are wanted, and the gaps between all of them. more: others may follow.
func cut(events []store.PersistedEvent, after, upTo int64, limit int, more bool, wants func(*store.PersistedEvent) bool) Page {
	p := Page{Look: frontier.Page{Checkpoint: after, Through: upTo}}
	if n := len(events); more && n > 0 && events[n-1].GlobalPosition < upTo {
		p.Look.Through, p.Full = events[n-1].GlobalPosition, true
	}
	p.fill(events[:0], events, limit, wants)
	return p
}

// share makes a page of what the frontier has read for all consumers.
func share(events []store.PersistedEvent, v *frontier.Value, ahead span, limit int, wants func(*store.PersistedEvent) bool) Page {
	p := Page{Look: frontier.Page{Checkpoint: ahead.after, Through: ahead.upTo}}
	p.fill(nil, events, limit, wants)
	p.Full = p.Look.Through < v.Safe
	p.own()
	return p
}

// fill appends those events of the page to kept that are wanted, and finds the
// gaps between all of them. The page ends with the last event for which there
// is room.
func (p *Page) fill(kept, events []store.PersistedEvent, limit int, wants func(*store.PersistedEvent) bool) {
	last := p.Look.Checkpoint
	for i := range events {
		position := events[i].GlobalPosition
		if position > p.Look.Through {
			break
		}
		p.gap(last+1, position-1)
		last = position
		if !wants(&events[i]) {
			continue
		}
		if kept = append(kept, events[i]); len(kept) == limit {
			p.Look.Through = position
			break
		}
	}
	p.gap(last+1, p.Look.Through)
	p.Events = kept
}

// own gives the page bytes of its own, all in one piece: a handler that writes
// into a payload must not change what others are given.
func (p *Page) own() {
	n := 0
	for i := range p.Events {
		n += len(p.Events[i].Payload) + len(p.Events[i].Metadata)
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
	for i := range p.Events {
		e := &p.Events[i]
		e.Payload, e.Metadata = copied(e.Payload), copied(e.Metadata)
	}
}

// from returns what the page has behind a position.
func (p Page) from(at int64) (rest Page, ok bool) {
	if at <= p.Look.Checkpoint {
		return p, at == p.Look.Checkpoint
	}
	if p.Void.Count > 0 {
		return Page{}, false // how many of them lie behind at is not known
	}
	p.Events = p.Events[firstAbove(p.Events, at):]
	missing := p.Look.Missing
	for p.Look.Missing = nil; len(missing) > 0; missing = missing[1:] {
		if m := missing[0]; m.Last > at {
			p.gap(max(m.First, at+1), m.Last)
		}
	}
	p.Look.Checkpoint = at
	return p, true
}

// join returns the page with the one behind it.
func (p Page) join(next Page) Page {
	p.Events = append(p.Events, next.Events...)
	p.Look.Missing = append(slices.Clip(p.Look.Missing), next.Look.Missing...)
	p.Look.Through, p.Full, p.Took = next.Look.Through, next.Full, p.Took+next.Took
	switch {
	case p.Void.Count == 0:
		p.Void = next.Void
	case next.Void.Count > 0:
		p.Void.Last, p.Void.Count = next.Void.Last, p.Void.Count+next.Void.Count
	}
	return p
}

// firstAbove is the index of the first event above a position.
func firstAbove(events []store.PersistedEvent, at int64) int {
	i, _ := slices.BinarySearchFunc(events, at+1, func(e store.PersistedEvent, p int64) int { return cmp.Compare(e.GlobalPosition, p) })
	return i
}

// keep drops the events that are not wanted.
func (p *Page) keep(wants func(*store.PersistedEvent) bool) { p.Events = wanted(p.Events, wants) }

// slotsOf are the slots of a page's events, found once for all shares of a consumer.
type slotsOf struct {
	events []store.PersistedEvent
	of     map[string][]uint16 // by consumer
}

// slotsIn returns the slots of a page's events.
func (r *view) slotsIn(p *Page) []uint16 {
	events, all := p.Events, []uint16(nil)
	if p.slots != nil {
		events, all = p.slots.events, p.slots.of[r.mine.Of]
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
			p.slots.of[r.mine.Of] = all
		}
	}
	return all[len(all)-len(p.Events):] // the page may begin later than it did
}

// countShare counts the events of a page that are of the share.
func (r *view) countShare(p *Page) (n int) {
	for i, slot := range r.slotsIn(p) {
		if e := &p.Events[i]; r.wantsType(e) && r.wantsSlot(e, slot) {
			n++
		}
	}
	return n
}

// keepShare drops the events of a page that are not of the share.
func (r *view) keepShare(p *Page) {
	kept := make([]store.PersistedEvent, 0, r.countShare(p))
	for i, slot := range r.slotsIn(p) {
		if e := &p.Events[i]; r.wantsType(e) && r.wantsSlot(e, slot) {
			kept = append(kept, *e)
		}
	}
	p.Events, p.slots = kept, nil
}

// wanted returns those events that are.
func wanted(events []store.PersistedEvent, wants func(*store.PersistedEvent) bool) (kept []store.PersistedEvent) {
	for i := range events {
		if wants(&events[i]) {
			kept = append(kept, events[i])
		}
	}
	return kept
}

func (p *Page) gap(first, last int64) {
	if first <= last {
		p.Look.Missing = append(p.Look.Missing, store.Range{First: first, Last: last})
	}
}

// withLate puts late events in front of a page, and keeps it within limit. more:
// there may be other late ones behind them.
func (p Page) withLate(late []store.PersistedEvent, open []store.Range, limit int, more bool, wants func(*store.PersistedEvent) bool) Page {
	p.Look.Open = open
	for i := range late {
		p.Look.Found = append(p.Look.Found, late[i].GlobalPosition)
	}
	if more && len(late) > 0 {
		// Perhaps not all: nothing newer before the rest of them.
		p.Events, p.Full = nil, true
		p.Look.Through, p.Look.Missing = late[len(late)-1].GlobalPosition, nil
	} else if room := limit - len(late); len(p.Events) > room {
		p.Events, p.Full = p.Events[:room], true
		p.Look.Through = p.Events[room-1].GlobalPosition
	}
	p.Events = append(wanted(late, wants), p.Events...)
	return p
}
