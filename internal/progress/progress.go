package progress

import (
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/delivered"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/receipt"
	"github.com/pgfrontier/worker/store"
)

// State is the progress of a consumer, as its checkpoint row records it.
type State struct {
	Version
	Position       int64
	Token          string // of the incarnation that answered the load, empty if there was no token
	Last           int64  // the sequence's last value at the load; math.MaxInt64 if the log names no sequence
	Open           []OpenRange
	Paused         *Pause   // nil: not paused
	Split          bool     // the consumer is split: its units have its slots, and this row is no unit
	Recorded       Recorded // scope of the code that has run the consumer
	Effects        delivered.Borders
	Receipt        *receipt.Region // of the handled events; nil: none is kept yet
	DeadLetters    int             // number of aggregates with dead letters that are not replayed, DeadLettersCounted at most
	HasDeadLetters bool            // there are dead letters, also of replayed aggregates
	Retry          bool            // an operator requested another attempt for some of them
	Retries        []Retry         // the next dead letters to retry; empty: read them
}

// Version distinguishes one state of a checkpoint row from all others.
type Version struct {
	Revision int64  // incremented by every change of the consumer's progress
	Row      string // ctid of this version of the row
	Author   string // xmin of the row: the transaction that wrote it
	Written  string // time of the write, in microseconds; after a crash the other fields may repeat
}

// Moved is a checkpoint row as a guard leaves it.
type Moved struct {
	Version
	Transaction string // Author with the epoch, as pg_xact_status takes it
	Role        string // of the transaction
}

// OpenRange is a range of positions that the consumer passed while they were in doubt.
type OpenRange struct {
	store.Range
	ID   int64     `json:"id"`
	Seen time.Time `json:"seen"`
}

// MarkState is the state of skipped positions.
type MarkState string

const (
	Void MarkState = "void" // never appears
	Open MarkState = "open" // in doubt when passed; watched
	Late MarkState = "late" // appeared after it was passed, and was delivered
)

// Mark is one row of the audit of skipped positions.
type Mark struct {
	store.Range
	Missing int64      `json:"missing"` // number of positions
	State   MarkState  `json:"state"`
	Seen    *time.Time `json:"seen,omitempty"` // nil: now
}

// Advance is the change that a batch makes to its consumer's progress.
type Advance struct {
	To    int64
	Head  int64  // highest visible position that this worker has read
	Token string // the incarnation in which the frontier was computed
	Marks []Mark
	// Gone are the ids of the open ranges that Marks replace.
	Gone []int64
	// Effects are the new borders, nil if they do not change.
	Effects *delivered.Borders
	Receipt
}

// Receipt is the change of a consumer's receipt.
type Receipt struct {
	Region *receipt.Region
	Rows   []receipt.Row // to insert
}

// Mark adds marks for ranges. If from is not nil, the ranges were part of from.
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

// Handles returns the borders after a batch that begins at checkpoint from, nil if they do not
// change. The batch handles all new events and the ranges others, which are late or retried.
// It does not handle the ranges aside.
func (a *Advance) Handles(from int64, b delivered.Borders, others, aside []store.Range) *delivered.Borders {
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
	after, changed := b.Handle(delivered.Without(handled, aside))
	if !changed {
		return nil
	}
	return &after
}

// Empty reports whether the batch changes nothing.
func (a *Advance) Empty(checkpoint int64) bool {
	return a.To == checkpoint && len(a.Marks) == 0
}

// Pause is a pause of a consumer.
type Pause struct {
	Since  time.Time
	By     string // an operator, or "worker" and its id
	Reason string
}

// ByWorker reports whether a worker has paused the consumer, not an operator.
func (p *Pause) ByWorker() bool { return strings.HasPrefix(p.By, "worker ") }

// words describe the pause. The reason of a worker's pause is left out: it is the error of a handler.
func (p *Pause) words() string {
	if p.ByWorker() {
		return errtext.Value(p.By)
	}
	return errtext.Value(p.By) + ", because " + errtext.Value(p.Reason)
}

// By returns the operator that a worker's own pauses and repairs record.
func By(worker uuid.UUID) string { return "worker " + worker.String() }
