package delivered

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/store"
)

// Border is the position up to which the effects of the events of some slots were had.
type Border struct {
	First int    `json:"first"` // slot
	Last  int    `json:"last"`
	Key   string `json:"key,omitempty"` // of the slots; empty: the aggregate's id
	After int64  `json:"after"`
	// Except are the positions at or below After without an effect, sorted and disjoint.
	Except []store.Range `json:"except,omitempty"`
	// Other is the position up to which another consumer may have had the effects, see Taken.
	Other int64 `json:"other,omitempty"`
}

// never is the border of a shadow: another consumer has the effects of every event.
const never = math.MaxInt64

// Borders are the borders of one unit. Without a border, all effects up to position 0 were
// had. Borders are immutable: each method returns new borders.
type Borders []Border

// Parse parses the result of [Borders.String].
func Parse(text string) (b Borders, err error) {
	if text == "[]" {
		return nil, nil
	}
	if err = json.Unmarshal([]byte(text), &b); err != nil {
		err = fmt.Errorf("%w: the column effects has other JSON than the library writes: restore it, or set it to '[]', and events that are handled again have their effects again", err)
	}
	return b, err
}

// String returns the stored form of the borders.
func (b Borders) String() string {
	text, _ := json.Marshal(append(Borders{}, b...)) // numbers and strings always marshal
	return string(text)
}

func (b Border) slots() partition.Range { return partition.Range{First: b.First, Last: b.Last} }

// had reports whether the effect of an event was had. The event must belong to the border's
// slots.
func (b Border) had(position int64) bool { return position <= b.After && !holds(b.Except, position) }

// Had reports whether the effect of the event at a position was had, according to the borders.
// For a position above the borders it returns false, since the borders do not know the
// checkpoint. Had calls slot only if the borders disagree. slot returns the event's slot by
// the given key. If the borders are of another key, Had returns false for a disputed position:
// an effect may then repeat, and none is lost.
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

// Beyond reports whether all borders are below a position.
func (b Borders) Beyond(position int64) bool {
	return !slices.ContainsFunc(b, func(one Border) bool { return one.After >= position })
}

// Pass raises the borders of a unit to its checkpoint, and adds the pending positions to the
// exceptions. Pending are the unit's positions in doubt and its dead letters.
func (b Borders) Pass(slots partition.Range, key string, checkpoint int64, pending []store.Range) Borders {
	pending = sorted(pending)
	return b.each(slots, key, func(one *Border) {
		if checkpoint > one.After {
			one.Except = union(one.Except, within(pending, store.Range{First: one.After + 1, Last: checkpoint}))
			one.After = checkpoint
		}
	})
}

// Cross records that a unit skips the events up to another position. Pass must have raised the
// borders to the unit's checkpoint.
func (b Borders) Cross(to int64) Borders {
	return b.each(partition.All, "", func(one *Border) {
		if to > one.After {
			one.Except = union(one.Except, []store.Range{{First: one.After + 1, Last: to}})
			one.After = to
		}
	})
}

// Lack records that the effects of positions were not had, although the unit has passed the
// positions. Those that another consumer may have had count as had.
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
		one.Except = union(one.Except, within(positions, store.Range{First: one.Other + 1, Last: one.After}))
	})
}

// Handle records that the events at positions were handled.
func (b Borders) Handle(positions []store.Range) (after Borders, changed bool) {
	positions = sorted(positions)
	if !slices.ContainsFunc(b, func(one Border) bool { return overlap(one.Except, positions) }) {
		return b, false
	}
	return b.each(partition.All, "", func(one *Border) { one.Except = subtract(one.Except, positions) }), true
}

// each returns a copy of the borders with a change of each border but those of a shadow. A unit
// without borders gets a border at 0.
func (b Borders) each(slots partition.Range, key string, change func(one *Border)) Borders {
	if len(b) == 0 {
		if slots == partition.All {
			key = ""
		}
		b = Borders{{First: slots.First, Last: slots.Last, Key: key}}
	}
	all := slices.Clone(b)
	for i := range all {
		if all[i].After != never {
			change(&all[i])
		}
	}
	return all
}

// Part is a unit that is to be merged.
type Part struct {
	Slots   partition.Range
	Borders Borders
}

// Join returns the borders of the unit that replaces parts. key is the key of the split.
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
		if last := &joined[len(joined)-1]; last.Last+1 == next.First && last.After == next.After && last.Other == next.Other && slices.Equal(last.Except, next.Except) {
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

// clip returns the borders of a range of slots. A slot without a border gets a border at 0: an
// effect may then repeat, and none is lost.
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
