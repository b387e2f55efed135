package history

import (
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Evidence is all that the oracle judges by. What the writers and the harness
// did stems from their own books, the rest was read from the database.
type Evidence struct {
	Consumers []Scope
	// Strict demands the order of positions of late events, too: there must
	// be none.
	Strict bool
	// History, if there is one, is what the findings refer to.
	History *History

	Committed []Event  // by the writers
	Abandoned []Event  // that writers rolled back; a server that crashed may give their positions to others
	Misled    []string // what the store let writers do although it must not
	Refused   int      // what it refused, as it must

	Log    []Event // the events table, in order of position
	Ledger []Entry // what the consumers applied, in the order in which they did
	Skips  []Skip  // the audit

	Operations []Operation // of operators, those of each consumer in their order
	Forgotten  []Skip      // open ranges that went when a consumer was set back

	Trespasses  []Trespass
	Assignments []Assignment // by workers

	Sightings []Sighting
	Samples   [][]Standing // one after the other
	Exits     []Exit
	Rest      Rest
}

// Scope is a consumer and what it wants.
type Scope struct {
	Name  string
	Types []string // none: all
}

// Wants reports whether the consumer is to be given events of that type.
func (s Scope) Wants(aggregateType string) bool {
	for _, t := range s.Types {
		if t == aggregateType {
			return true
		}
	}
	return len(s.Types) == 0
}

// Event is an event as the writers, the log and the ledger know it.
type Event struct {
	Position int64
	Type, ID string // of the aggregate
	Version  int64
	EventID  uuid.UUID
}

func (e Event) String() string {
	return fmt.Sprintf("position %d (%s/%s version %d)", e.Position, e.Type, e.ID, e.Version)
}

// Entry is an event that a consumer applied.
type Entry struct {
	Event
	Consumer string
	Worker   string
	Batch    string // the transaction that it was part of
	Late     bool   // as the worker said when it delivered the event
	Epoch    int64  // how often an operator had reset the consumer by then
}

// Span is the positions First to Last.
type Span struct {
	First int64 `json:"first"`
	Last  int64 `json:"last"`
}

// Holds reports whether a position is one of them.
func (s Span) Holds(position int64) bool { return s.First <= position && position <= s.Last }

// Skip is a row of the audit: Missing positions of a span.
type Skip struct {
	Span
	Consumer string
	Missing  int64
	State    string // void, open or late
	Epoch    int64  // of the consumer, when the row was written
}

func (s Skip) String() string {
	return fmt.Sprintf("%d %s in [%d, %d]", s.Missing, s.State, s.First, s.Last)
}

// Standing is how far a consumer has come, as one snapshot shows it.
type Standing struct {
	Consumer   string
	Checkpoint int64
	Revision   int64
	Epoch      int64
	Open       []Span // passed while they were in doubt
}

// Passed reports whether the consumer went past a position without a record
// that it is in doubt.
func (s Standing) Passed(position int64) bool {
	if s.Checkpoint < position {
		return false
	}
	for _, o := range s.Open {
		if o.Holds(position) {
			return false
		}
	}
	return true
}

// Operation is what an operator did to a consumer's progress. A reset ends an
// epoch of the consumer and begins the next; they are counted from 0.
type Operation struct {
	Consumer string
	Kind     string // OperationReset or OperationSkip
	Epoch    int64  // before it
	From     int64  // the checkpoint before it
	To       int64  // the checkpoint after a reset, the event that a skip left out
}

// What operators do, as the library calls it.
const (
	OperationReset = "reset"
	OperationSkip  = "skip"
)

// Trespass is a batch that was begun by a worker to which its consumer was not
// assigned.
type Trespass struct {
	Consumer string
	Worker   string
	Batch    string // its transaction
}

// Assignment is one that a worker has written.
type Assignment struct {
	Consumer string // that it assigned
	Worker   string // that wrote it
	Led      bool   // it was the leader then
}

// Sighting is what a writer saw of the consumers while a transaction of its
// own, the owner of these positions, had not been told to commit yet.
type Sighting struct {
	Positions []int64
	Standings []Standing
}

// Exit is the end of a worker.
type Exit struct {
	Worker string
	Asked  string // why it was to end, one of the exits below
	Error  string // what it said; empty: nothing
	InTime bool
	Bound  time.Duration
}

// Why workers end.
const (
	ExitStopped = "stopped"
	ExitCrashed = "crashed"
	ExitSlow    = "too slow to start" // it gave up before it ran, on a busy machine
	ExitItself  = ""
)

// Rest is how everything came to rest after the faults had stopped.
type Rest struct {
	Head      int64 // of the log
	Took      time.Duration
	Bound     time.Duration
	Standings []Standing // at the end
}
