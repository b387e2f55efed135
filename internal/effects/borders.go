package effects

import (
	"encoding/json"
	"slices"

	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/store"
)

// Border is up to where the effects of some slots' events were had.
type Border struct {
	First int    `json:"first"` // slot
	Last  int    `json:"last"`
	Key   string `json:"key,omitempty"` // that the slots are of; empty: the aggregate's id
	After int64  `json:"after"`
	// Except are positions at or below After whose effects were not had: sorted, apart.
	Except []store.Range `json:"except,omitempty"`
}

// Borders are those of one unit. None: all are at 0. They never change: each method
// returns others.
type Borders []Border

// Parse returns the borders that [Borders.String] has written.
func Parse(text string) (b Borders, err error) {
	if text == "[]" {
		return nil, nil
	}
	return b, json.Unmarshal([]byte(text), &b)
}

// String is how the borders are stored.
func (b Borders) String() string {
	text, _ := json.Marshal(append(Borders{}, b...)) // of numbers and strings it does not fail
	return string(text)
}

func (b Border) slots() partition.Range { return partition.Range{First: b.First, Last: b.Last} }

// had reports whether an event of the border's slots is one whose effect was had.
func (b Border) had(position int64) bool { return position <= b.After && !holds(b.Except, position) }

// Had reports whether the effect of the event at a position was had, as far as the
// borders say: those above it do not know of the checkpoint. slot is asked only if
// they differ, and returns the event's slot by a key. Where the borders are of another
// key, an effect that may not have been had was not.
func (b Borders) Had(position int64, key string, slot func() (int, error)) (bool, error) {
	if len(b) == 0 || !slices.ContainsFunc(b, func(one Border) bool { return one.had(position) }) {
		return false, nil
	}
	if !slices.ContainsFunc(b, func(one Border) bool { return !one.had(position) }) {
		return true, nil
	}
	at, err := slot()
	if err != nil {
		return false, err
	}
	for _, one := range b {
		if one.Key == key && one.slots().Has(at) {
			return one.had(position), nil
		}
	}
	return false, nil
}

// Beyond reports whether all borders are below a position: nothing above it was had.
func (b Borders) Beyond(position int64) bool {
	return !slices.ContainsFunc(b, func(one Border) bool { return one.After >= position })
}

// Pass raises the borders of a unit to its checkpoint, except for what is pending:
// the positions in doubt that it has passed, and its dead letters.
func (b Borders) Pass(slots partition.Range, key string, checkpoint int64, pending []store.Range) Borders {
	pending = sorted(pending)
	return b.each(slots, key, func(one *Border) {
		if checkpoint > one.After {
			one.Except = union(one.Except, within(pending, store.Range{First: one.After + 1, Last: checkpoint}))
			one.After = checkpoint
		}
	})
}

// Cross takes note that a unit whose borders were raised to its checkpoint goes on to
// another one, without the events in between.
func (b Borders) Cross(to int64) Borders {
	return b.each(partition.All, "", func(one *Border) {
		if to > one.After {
			one.Except = union(one.Except, []store.Range{{First: one.After + 1, Last: to}})
			one.After = to
		}
	})
}

// Lack records that the effects of positions were not had, although the unit has passed them.
func (b Borders) Lack(missed []int64) Borders {
	if len(b) == 0 || len(missed) == 0 {
		return b
	}
	var positions []store.Range
	for _, p := range missed {
		positions = append(positions, store.Range{First: p, Last: p})
	}
	positions = sorted(positions)
	return b.each(partition.All, "", func(one *Border) {
		one.Except = union(one.Except, within(positions, store.Range{First: 1, Last: one.After}))
	})
}

// Handle takes note that the events at positions were handled.
func (b Borders) Handle(positions []store.Range) (after Borders, changed bool) {
	positions = sorted(positions)
	if !slices.ContainsFunc(b, func(one Border) bool { return overlap(one.Except, positions) }) {
		return b, false
	}
	return b.each(partition.All, "", func(one *Border) { one.Except = subtract(one.Except, positions) }), true
}

// each returns the borders after a change of each one. A unit without borders has one
// at 0.
func (b Borders) each(slots partition.Range, key string, change func(one *Border)) Borders {
	if len(b) == 0 {
		if slots == partition.All {
			key = ""
		}
		b = Borders{{First: slots.First, Last: slots.Last, Key: key}}
	}
	all := slices.Clone(b)
	for i := range all {
		change(&all[i])
	}
	return all
}

// Part is a unit that is merged.
type Part struct {
	Slots   partition.Range
	Borders Borders
}

// Join returns the borders of the unit that takes the place of parts, which are split
// by a key.
func Join(parts []Part, key string) (all Borders) {
	some := false
	for _, p := range parts {
		some = some || len(p.Borders) > 0
		all = append(all, p.Borders.clip(p.Slots, key)...)
	}
	if !some {
		return nil
	}
	slices.SortFunc(all, func(a, b Border) int { return a.First - b.First })
	joined := all[:1]
	for _, next := range all[1:] {
		if last := &joined[len(joined)-1]; last.Last+1 == next.First && last.After == next.After && slices.Equal(last.Except, next.Except) {
			last.Last = next.Last
		} else {
			joined = append(joined, next)
		}
	}
	if len(joined) == 1 && joined[0].slots() == partition.All {
		joined[0].Key = ""
	}
	return joined
}

// clip returns the borders for some slots only. Where there is none for a slot, it is
// at 0: an effect that may not have been had was not.
func (b Borders) clip(slots partition.Range, key string) (clipped Borders) {
	next := slots.First
	add := func(one Border, last int) {
		one.First, one.Last, one.Key = next, last, key
		clipped, next = append(clipped, one), last+1
	}
	for _, one := range b {
		if one.Key != key && one.slots() != partition.All || one.Last < next || one.First > slots.Last {
			continue
		}
		if one.First > next {
			add(Border{}, one.First-1)
		}
		add(one, min(one.Last, slots.Last))
	}
	if next <= slots.Last {
		add(Border{}, slots.Last)
	}
	return clipped
}
