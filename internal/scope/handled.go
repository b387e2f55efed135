package scope

import "slices"

// Event is an event of an aggregate that a unit has passed.
type Event struct {
	Position int64
	Unknown  bool // it is not known which build has passed it
}

// Handled returns the positions of those of an aggregate's events that the handler has got. steps are
// all steps of the consumer, in order. slot is the aggregate's slot. Without a Began, the consumer began
// with the first event above start. An event counts as got if the steps do not show which build passed it.
//
// This differs from the events whose effects the consumer has had: a shadow has got events without
// effects, and an event whose dead letter was left by a Reset had effects, and its changes are gone.
//
// known is false after an event was dropped in a replay: the steps do not show whether the handler has
// forgotten the aggregate before.
func Handled(steps []Step, slot int, of Aggregate, start int64, events []Event) (positions []int64, known bool) {
	known = true
	for _, e := range events {
		f := fate{passed: e.Position <= start, handled: e.Position > start}
		for i, s := range steps {
			if s.Slots.Has(slot) {
				given := s.Given != nil && e.Position <= s.Given.To && s.Given.includes(steps[:i], slot, of, events)
				f.step(s, of, e, given)
			}
		}
		if f.handled {
			positions = append(positions, e.Position)
		}
		known = known && !f.unknown
	}
	return positions, known
}

// fate is what has become of an event.
type fate struct {
	passed, handled bool
	replayed        bool // it was to be handled again
	unknown         bool // it was dropped then
}

func (f *fate) step(s Step, of Aggregate, e Event, given bool) {
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
	case s.Replayed != nil && s.Replayed.Aggregate == of && e.Position <= s.Replayed.To, given:
		*f = fate{passed: true, handled: true, replayed: true}
	}
}

// Reached returns the highest position from which the checkpoint of a slot was set back.
func Reached(steps []Step, slot int) (position int64) {
	for _, s := range steps {
		if s.Slots.Has(slot) && s.Moved != nil && s.Moved.To < s.Moved.From {
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
