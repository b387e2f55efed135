package scope

import (
	"slices"

	"github.com/pgfrontier/worker/internal/partition"
)

// Step is a record of the table of operations that affects which events a unit delivered.
// Exactly one of its pointers is set. Missed ignores the last three, see [Handled].
type Step struct {
	Slots    partition.Range // the unit's slots
	Changed  *Changed
	Moved    *Moved
	Given    *Given
	Began    *Began
	Dropped  *Dropped
	Replayed *Replayed
}

// Changed is a change of the scope.
type Changed struct {
	From     Scope `json:"from"`
	Position int64 `json:"position"` // the last position at which From selected the events
	Open     []struct {
		First int64 `json:"first"`
		Last  int64 `json:"last"`
	} `json:"open"` // positions up to Position that were in doubt
}

// Moved is a move of the checkpoint by an operation.
type Moved struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// Given is a later delivery of the events of some types.
type Given struct {
	Types []string `json:"types"`
	To    int64    `json:"to"` // the last position
}

// Began is the begin of a consumer with the first event above a position.
type Began struct {
	Position int64 `json:"position"`
}

// Dropped are the positions of events that an operator has skipped, or whose dead letters an operator
// has discarded.
type Dropped struct {
	Position  int64   `json:"position"` // 0: several
	Positions []int64 `json:"positions"`
}

// Replayed is a replay of an aggregate.
type Replayed struct {
	Aggregate
	To int64 `json:"to"` // the last position
}

// Aggregate names an aggregate.
type Aggregate struct {
	Type string `json:"aggregate_type"`
	ID   string `json:"aggregate_id"`
}

// Missed reports whether a consumer passed an event undelivered because its code did not
// select the event's type. steps are all steps of the consumer, in order. slot is the event's
// slot. A position that was in doubt at a change counts as not missed. The steps do not show
// which build received its event.
func Missed(steps []Step, slot int, kind string, position int64) (missed bool) {
	passed := false
	for _, s := range steps {
		if !s.Slots.Has(slot) {
			continue
		}
		switch {
		case s.Changed != nil && s.Changed.doubted(position):
			return false
		case s.Changed != nil && !passed && position <= s.Changed.Position:
			passed, missed = true, !s.Changed.From.Selects(kind)
		case s.Moved != nil && s.Moved.To < position && position <= s.Moved.From:
			passed, missed = false, false // the position is passed again
		case s.Moved != nil && s.Moved.From < position && position <= s.Moved.To && !passed:
			passed = true // an operator skipped the position
		case s.Given != nil && position <= s.Given.To && slices.Contains(s.Given.Types, kind):
			missed = false
		}
	}
	return missed
}

func (c *Changed) doubted(position int64) bool {
	for _, o := range c.Open {
		if o.First <= position && position <= o.Last {
			return true
		}
	}
	return false
}

// Selects reports whether events of a type are delivered.
func (s Scope) Selects(kind string) bool {
	_, named := slices.BinarySearch(s.Types, kind)
	return named || len(s.Types) == 0
}
