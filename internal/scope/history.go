package scope

import (
	"slices"

	"github.com/pgfrontier/worker/internal/partition"
)

// Step is what the table of operations tells of a unit that decides which events were
// delivered. Exactly one of its pointers is set.
type Step struct {
	Slots   partition.Range // of the unit
	Changed *Changed
	Moved   *Moved
	Given   *Given
}

// Changed is a change of the scope.
type Changed struct {
	From     Scope `json:"from"`
	Position int64 `json:"position"` // up to it, events were selected by From
	Open     []struct {
		First int64 `json:"first"`
		Last  int64 `json:"last"`
	} `json:"open"` // positions of these that were in doubt
}

// Moved is a checkpoint that an operation has moved.
type Moved struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// Given are events of types that were delivered afterwards.
type Given struct {
	Types []string `json:"types"`
	To    int64    `json:"to"` // up to it
}

// Missed reports whether a consumer has passed the event of a type at a position because
// the code that ran it did not select the type. The steps are all that concern the
// consumer, in their order; slot is the event's. A position that was in doubt at a change
// counts as not missed: the steps do not tell which build its event was delivered to.
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
			passed, missed = false, false // it comes again
		case s.Moved != nil && s.Moved.From < position && position <= s.Moved.To && !passed:
			passed = true // it was crossed
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
