package progress

import (
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/effects"
	"github.com/pgfrontier/worker/store"
)

// State is how far a consumer has come, as its checkpoint row says.
type State struct {
	Version
	Position    int64
	Token       string // the incarnation that it was loaded in, empty if there was none
	Last        int64  // the sequence's last value then; math.MaxInt64 if the log names none
	Open        []OpenRange
	Paused      *Pause   // nil: it may run
	Split       bool     // the row is no unit: others have its consumer's slots
	Recorded    Recorded // of the code that has run it
	Effects     effects.Borders
	DeadLetters int     // aggregates that have dead letters and are not replayed, DeadLettersCounted at most
	Letters     bool    // there are letters, also of those that are replayed
	Retry       bool    // an operator wants some of them to be tried again
	Retries     []Retry // the next of these; none: look them up
}

// Version tells one state of a checkpoint row from all others.
type Version struct {
	Revision int64  // counts every change of the consumer's progress
	Row      string // where this version of it is: its ctid
	Author   string // the transaction that wrote it: its xmin
	Written  string // when: in microseconds. After a crash, the rest may come again from another
}

// Moved is a checkpoint row as a guard leaves it.
type Moved struct {
	Version
	Transaction string // its author with the epoch, as pg_xact_status takes it
	Role        string // of the transaction
}

// OpenRange are positions that the consumer passed while they were in doubt.
type OpenRange struct {
	store.Range
	ID   int64     `json:"id"`
	Seen time.Time `json:"seen"`
}

// MarkState is what is known of skipped positions.
type MarkState string

const (
	Void MarkState = "void" // proven never to appear
	Open MarkState = "open" // in doubt when passed; watched
	Late MarkState = "late" // appeared after it was passed, and was delivered
)

// Mark is one row of the audit of skipped positions.
type Mark struct {
	store.Range
	Missing int64      `json:"missing"` // how many of them
	State   MarkState  `json:"state"`
	Seen    *time.Time `json:"seen,omitempty"` // nil: now
}

// Advance is what a batch does to its consumer's progress.
type Advance struct {
	To    int64
	Head  int64  // highest visible position, as far as this worker has seen
	Token string // the incarnation in which the frontier was computed
	Marks []Mark
	// Gone are the open ranges that marks replace.
	Gone []int64
	// Effects are the borders afterwards, nil if they stay as they are.
	Effects *effects.Borders
}

// Mark adds rows for ranges, which were in from before if that is not nil.
func (a *Advance) Mark(state MarkState, spans []store.Range, from *OpenRange) {
	for _, s := range spans {
		m := Mark{Range: s, Missing: s.Count(), State: state}
		if from != nil {
			m.Seen = &from.Seen
		}
		a.Marks = append(a.Marks, m)
	}
}

// MovesOpen reports whether the consumer's open ranges change.
func (a *Advance) MovesOpen() bool {
	if len(a.Gone) > 0 {
		return true
	}
	for _, m := range a.Marks {
		if m.State == Open {
			return true
		}
	}
	return false
}

// Handles returns the borders that a batch leaves which begins at a checkpoint and
// handles everything but some events. Others than new ones are late, or retried.
func (a *Advance) Handles(from int64, b effects.Borders, others, aside []store.Range) *effects.Borders {
	handled, aside := slices.Clone(others), slices.Clone(aside)
	if a.To > from {
		handled = append(handled, store.Range{First: from + 1, Last: a.To})
	}
	for _, m := range a.Marks {
		switch {
		case m.State == Open:
			aside = append(aside, m.Range)
		case m.Last <= from: // a doubt that has ended
			handled = append(handled, m.Range)
		}
	}
	after, changed := b.Handle(effects.Without(handled, aside))
	if !changed {
		return nil
	}
	return &after
}

// Empty reports whether nothing would change.
func (a *Advance) Empty(checkpoint int64) bool {
	return a.To == checkpoint && len(a.Marks) == 0
}
