package scope

import "slices"

// Event is an event of an aggregate that a unit has passed.
type Event struct {
	Position int64
	Unknown  bool // it is not known which build has passed it
}

// Handled returns the positions of an aggregate's events that were delivered to the handler. steps are
// all steps of the consumer, in order. slot is the aggregate's slot. Without a Began, the consumer began
// with the first event above start. An event counts as delivered if the steps do not show which build
// passed it.
//
// These are other events than those whose effects the consumer has had. A shadow gets events without
// effects. After a Reset, an event whose effects were had may fail.
//
// known is false if an event was skipped or discarded in a replay. The steps do not show whether the
// handler had forgotten the aggregate before.
func Handled(steps []Step, slot int, of Aggregate, start int64, events []Event) (positions []int64, known bool) {
	included := make([]bool, len(steps)) // in the later delivery
	for i, s := range steps {
		included[i] = s.Given != nil && s.Slots.Has(slot) && s.Given.includes(steps[:i], slot, of, events)
	}
	known = true
	for _, e := range events {
		f := fate{passed: e.Position <= start, handled: e.Position > start}
		for i, s := range steps {
			if s.Slots.Has(slot) {
				f.step(s, of, e, included[i])
			}
		}
		if f.handled {
			positions = append(positions, e.Position)
		}
		known = known && !f.unknown
	}
	return positions, known
}

// fate is the state of an event after some steps.
type fate struct {
	passed, handled bool
	replayed        bool // the event was to be handled again
	unknown         bool // the event was skipped or discarded after that
}

func (f *fate) step(s Step, of Aggregate, e Event, included bool) {
	switch {
	case s.Began != nil:
		*f = fate{passed: e.Position <= s.Began.Position, handled: e.Position > s.Began.Position}
	case s.Changed != nil && s.Changed.doubted(e.Position):
		f.passed, f.handled = true, true
	case s.Changed != nil && !f.passed && e.Position <= s.Changed.Position:
		f.passed, f.handled = true, e.Unknown || s.Changed.From.Selects(of.Type)
	case s.Moved != nil && s.Moved.To < e.Position && e.Position <= s.Moved.From:
		*f = fate{handled: true} // passed again
	case s.Moved != nil && s.Moved.From < e.Position && e.Position <= s.Moved.To:
		*f = fate{passed: true}
	case s.Dropped != nil && s.Dropped.has(e.Position):
		f.unknown = f.replayed
		f.passed, f.handled = true, false
	case s.Replayed != nil && s.Replayed.Aggregate == of && e.Position <= s.Replayed.To,
		included && e.Position <= s.Given.To:
		*f = fate{passed: true, handled: true, replayed: true}
	}
}

// Reached returns the highest position from which the checkpoint of a slot was moved. Above the present
// one, it was set back.
func Reached(steps []Step, slot int) (position int64) {
	for _, s := range steps {
		if s.Slots.Has(slot) && s.Moved != nil {
			position = max(position, s.Moved.From)
		}
	}
	return position
}

func (d *Dropped) has(position int64) bool {
	return d.Position == position || slices.Contains(d.Positions, position)
}

// includes reports whether the later delivery included an aggregate: all events of those with a missed
// event are delivered. steps are those before.
func (g *Given) includes(steps []Step, slot int, of Aggregate, events []Event) bool {
	return slices.Contains(g.Types, of.Type) && slices.ContainsFunc(events, func(e Event) bool {
		return !e.Unknown && Missed(steps, slot, of.Type, e.Position)
	})
}
