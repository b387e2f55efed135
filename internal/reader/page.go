package reader

import (
	"cmp"
	"slices"
	"time"
	"unsafe"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/store"
)

// Page is the result of one read of the log for a consumer.
type Page struct {
	Events    []store.PersistedEvent // to handle, in order of position, late events first
	Positions frontier.Page
	// Void counts the missing positions, if their ranges are unknown. Then there are no
	// doubts and no open ranges.
	Void store.Missing
	Full bool // there are probably more events

	slots *slotsOf      // shared by the shares of a page; nil: the page is not shared
	Took  time.Duration // duration of the read
}

// Cross decides what passing the page means, under the Value of its read. It shortens the page
// if passing it would leave more than maxOpen open ranges. blocked reports whether it did.
func (p *Page) Cross(v *frontier.Value, maxOpen int) (crossing frontier.Crossing, blocked bool) {
	crossing = v.Cross(p.Positions)
	if room := maxOpen - openAfter(crossing, len(p.Positions.Open)); room < 0 {
		// Stop before the first range that exceeds maxOpen.
		keep := max(len(crossing.Opened)+room, 0)
		if keep < len(crossing.Opened) {
			p.EndAt(max(crossing.Opened[keep].First-1, p.Positions.Checkpoint))
			crossing = v.Cross(p.Positions)
			blocked = true
		}
	}
	return crossing, blocked
}

// openAfter returns the number of open ranges after a crossing.
func openAfter(c frontier.Crossing, before int) int {
	n := before + len(c.Opened)
	for _, closed := range c.Closed {
		n += len(closed.Remains) - 1
	}
	return n
}

// EndAt shortens a page.
func (p *Page) EndAt(through int64) {
	p.Positions.Through, p.Full = through, true
	for n := len(p.Events); n > 0 && p.Events[n-1].GlobalPosition > through; n-- {
		p.Events = p.Events[:n-1]
	}
	for n := len(p.Positions.Found); n > 0 && p.Positions.Found[n-1] > through; n-- {
		p.Positions.Found = p.Positions.Found[:n-1]
	}
}

// cut returns the page of a read: the events up to upTo of the wanted types, and the gaps
// between all events. more reports whether other events may follow.
func cut(events []store.PersistedEvent, after, upTo int64, limit int, more bool, wants func(*store.PersistedEvent) bool) Page {
	p := Page{Positions: frontier.Page{Checkpoint: after, Through: upTo}}
	if n := len(events); more && n > 0 && events[n-1].GlobalPosition < upTo {
		p.Positions.Through, p.Full = events[n-1].GlobalPosition, true
	}
	p.fill(events[:0], events, limit, wants)
	return p
}

// pageOfTail returns the page of events that the frontier has read for all consumers.
func pageOfTail(events []store.PersistedEvent, v *frontier.Value, ahead span, limit int, wants func(*store.PersistedEvent) bool) Page {
	p := Page{Positions: frontier.Page{Checkpoint: ahead.after, Through: ahead.upTo}}
	p.fill(nil, events, limit, wants)
	p.Full = p.Positions.Through < v.Safe
	p.copyBytes()
	return p
}

// fill appends the wanted events of the page to kept, and finds the gaps between all events.
// The page ends with the event that reaches limit.
func (p *Page) fill(kept, events []store.PersistedEvent, limit int, wants func(*store.PersistedEvent) bool) {
	last := p.Positions.Checkpoint
	for i := range events {
		position := events[i].GlobalPosition
		if position > p.Positions.Through {
			break
		}
		p.gap(last+1, position-1)
		last = position
		if !wants(&events[i]) {
			continue
		}
		if kept = append(kept, events[i]); len(kept) == limit {
			p.Positions.Through = position
			break
		}
	}
	p.gap(last+1, p.Positions.Through)
	p.Events = kept
}

// copyBytes copies the payloads and metadata of the page into one piece of memory. A handler
// that writes into a payload must not change the events of others.
func (p *Page) copyBytes() {
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

// from returns the part of the page after a position.
func (p Page) from(at int64) (rest Page, ok bool) {
	if at <= p.Positions.Checkpoint {
		return p, at == p.Positions.Checkpoint
	}
	if p.Void.Count > 0 {
		return Page{}, false // the number of missing positions after at is unknown
	}
	p.Events = p.Events[firstAbove(p.Events, at):]
	missing := p.Positions.Missing
	for p.Positions.Missing = nil; len(missing) > 0; missing = missing[1:] {
		if m := missing[0]; m.Last > at {
			p.gap(max(m.First, at+1), m.Last)
		}
	}
	p.Positions.Checkpoint = at
	return p, true
}

// join returns the page followed by the next page.
func (p Page) join(next Page) Page {
	p.Events = append(p.Events, next.Events...)
	p.Positions.Missing = append(slices.Clip(p.Positions.Missing), next.Positions.Missing...)
	p.Positions.Through, p.Full, p.Took = next.Positions.Through, next.Full, p.Took+next.Took
	switch {
	case p.Void.Count == 0:
		p.Void = next.Void
	case next.Void.Count > 0:
		p.Void.Last, p.Void.Count = next.Void.Last, p.Void.Count+next.Void.Count
	}
	return p
}

// firstAbove returns the index of the first event above a position.
func firstAbove(events []store.PersistedEvent, at int64) int {
	i, _ := slices.BinarySearchFunc(events, at+1, func(e store.PersistedEvent, p int64) int { return cmp.Compare(e.GlobalPosition, p) })
	return i
}

// keep drops the events that are not wanted.
func (p *Page) keep(wants func(*store.PersistedEvent) bool) { p.Events = wanted(p.Events, wants) }

// wanted returns the wanted events.
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
		p.Positions.Missing = append(p.Positions.Missing, store.Range{First: first, Last: last})
	}
}

// withLate inserts late events before a page's events, and keeps the page within limit. more
// reports whether other late events may follow.
func (p Page) withLate(late []store.PersistedEvent, open []store.Range, limit int, more bool, wants func(*store.PersistedEvent) bool) Page {
	p.Positions.Open = open
	for i := range late {
		p.Positions.Found = append(p.Positions.Found, late[i].GlobalPosition)
	}
	if more && len(late) > 0 {
		// Other late events may follow: deliver no newer event before them.
		p.Events, p.Full = nil, true
		p.Positions.Through, p.Positions.Missing = late[len(late)-1].GlobalPosition, nil
	} else if room := limit - len(late); len(p.Events) > room {
		p.Events, p.Full = p.Events[:room], true
		p.Positions.Through = p.Events[room-1].GlobalPosition
	}
	p.Events = append(wanted(late, wants), p.Events...)
	return p
}

// size returns the memory that an event uses.
func size(e *store.PersistedEvent) int {
	return int(unsafe.Sizeof(*e)) + len(e.AggregateType) + len(e.AggregateID) + len(e.EventType) + len(e.Payload) + len(e.Metadata)
}

func sizeOf(events []store.PersistedEvent) (bytes int) {
	for i := range events {
		bytes += size(&events[i])
	}
	return bytes
}

// width returns the average size of an event, 0 if there are none.
func width(events []store.PersistedEvent) int {
	if len(events) == 0 {
		return 0
	}
	return sizeOf(events) / len(events)
}

// span is the range of positions (after, upTo].
type span struct{ after, upTo int64 }

// slotsOf are the slots of a page's events, computed once for all shares of a consumer.
type slotsOf struct {
	events []store.PersistedEvent
	of     map[string][]uint16 // by consumer
}
