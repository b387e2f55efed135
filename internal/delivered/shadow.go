package delivered

import (
	"slices"

	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/store"
)

// Shadow returns the borders of a shadow. They stay as they are.
func Shadow() Borders {
	return Borders{{First: partition.All.First, Last: partition.All.Last, After: never, Other: never}}
}

// Begun returns the borders of a consumer that an operator lets begin. They are those of a unit
// without borders, and tell that it has not run.
func Begun() Borders { return Borders{}.Pass(partition.All, "", 0, nil) }

// IsShadow reports whether all slots are those of a shadow.
func (b Borders) IsShadow() bool {
	return len(b) > 0 && !slices.ContainsFunc(b, func(one Border) bool { return one.After != never })
}

// Dismiss counts as had what an operator has skipped or discarded above a position: it is not owed to
// a consumer that takes over there. The other parameters are those of Owed.
func (b Borders) Dismiss(position int64, pending []store.Range, above int64) Borders {
	b = slices.Clone(b)
	for i := range b {
		gone := subtract(within(b[i].Except, store.Range{First: above + 1, Last: position}), sorted(pending))
		b[i].Except = subtract(b[i].Except, gone)
	}
	return b
}

// Taken returns the borders of a consumer that takes over from the consumer with borders b.
func (b Borders) Taken() Borders {
	b = slices.Clone(b)
	for i := range b {
		b[i].Other = b[i].After
	}
	return b
}

// IsOthers reports whether another consumer may have had the effect of the event at a position. The
// effect must have been had.
func (b Borders) IsOthers(position int64) bool {
	return slices.ContainsFunc(b, func(one Border) bool { return position <= one.Other })
}

// Owed returns the positions up to a limit whose effects a unit is still to have. position is the
// unit's checkpoint, to which Pass must have raised the borders. pending is what it has passed
// without handling it. What an operator has skipped or discarded is not owed.
func (b Borders) Owed(position int64, pending []store.Range, limit int64) (all []store.Range) {
	ahead := sorted(append(slices.Clone(pending), store.Range{First: position + 1, Last: never}))
	for _, one := range b {
		for _, r := range ahead {
			all = append(all, within(one.Except, r)...)
		}
		if limit > one.After {
			all = append(all, store.Range{First: one.After + 1, Last: limit})
		}
	}
	return within(sorted(all), store.Range{First: 1, Last: limit})
}
