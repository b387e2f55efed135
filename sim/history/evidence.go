package history

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
)

// Evidence is all that the oracle judges by. What the writers and the harness did is from their own
// ledgers, the rest was read from the database. Long lists are left out of its JSON: they are saved
// line by line.
type Evidence struct {
	Consumers []Scope `json:"consumers"`
	// Strict demands that no event is late: all come in the order of positions.
	Strict bool `json:"strict"`
	// Forgetful says that workers do not wait for their commits to be safe: a crash of the server
	// may take the last of them back.
	Forgetful bool `json:"forgetful"`
	// History, if there is one, is what the findings refer to.
	History *History `json:"-"`

	Committed []Event   `json:"-"`                // by the writers
	Unsure    [][]Event `json:"-"`                // the transactions that a crash may have taken back: committed asynchronously, some time before it
	Abandoned []Event   `json:"-"`                // that writers rolled back; a server that crashed may give their positions to others
	Misled    []string  `json:"misled,omitempty"` // what the store let writers do although it must not
	Refused   int       `json:"refused"`          // what the store refused, as it must

	Breaches   []Breach    `json:"breaches,omitempty"`
	Repairs    []Repair    `json:"repairs,omitempty"`
	Restores   []Restore   `json:"restores,omitempty"`   // of a cold copy of the server
	Placements []Placement `json:"placements,omitempty"` // of the consumers, each when it first got a checkpoint
	Kept       int         `json:"kept,omitempty"`       // times that WaitFor said that a consumer had handled an event, and it had
	Unkept     []string    `json:"unkept,omitempty"`     // such answers that were wrong
	Selected   []Selected  `json:"selected,omitempty"`   // by consumers whose builds differ, those of each in their order
	Sound      int         `json:"sound,omitempty"`      // sessions in a worker's pool that were as they had been opened
	Unsound    []string    `json:"unsound,omitempty"`    // sessions that were not

	Log    []Event `json:"-"` // the events table, in order of position
	Ledger []Entry `json:"-"` // what the consumers applied, in the order in which they did
	Skips  []Skip  `json:"-"` // the audit

	Operations []Operation `json:"-"` // of operators, those of each consumer in their order
	Forgotten  []Skip      `json:"-"` // open ranges that went when a consumer was set back
	// PausedParts is how often an operator paused a unit while its consumer was split.
	PausedParts int `json:"paused_parts,omitempty"`
	// Rewatched are positions that a unit had passed as void, and that another part watched. The
	// unit into which both were merged watches them.
	Rewatched []Skip `json:"-"`

	Unauthorized []UnauthorizedBatch `json:"-"`
	Assignments  []Assignment        `json:"-"` // by workers

	Sightings []Sighting   `json:"-"`
	Samples   [][]Standing `json:"-"` // one after the other
	Exits     []Exit       `json:"-"`
	Rest      Rest         `json:"rest"`

	Proofs []Proof `json:"proofs,omitempty"` // that the receipts of the consumers give

	// Jobs is the evidence of a run of jobs, which has none of the consumers'.
	Jobs *Jobs `json:"jobs,omitempty"`

	// Incomplete says that the run ended before it came to rest, or that its tables were not read
	// to the end. What is not there proves nothing.
	Incomplete bool `json:"incomplete,omitempty"`
	// Unread says that not all tables could be read.
	Unread bool `json:"unread,omitempty"`
	// Harness is the failure of the harness that ended the run, nil if there was none.
	Harness *HarnessFailure `json:"harness,omitempty"`
	// Failures are the errors of calls of the library, and of statements, that neither a
	// fault nor the harness explains.
	Failures []string `json:"failures,omitempty"`
}

// Proof is what the receipts of a consumer say about the log.
type Proof struct {
	Consumer string   `json:"consumer"`
	Events   int64    `json:"events"` // that it has handled exactly once
	Unproven []string `json:"unproven,omitempty"`
}

// HarnessFailure is what the harness could not do.
type HarnessFailure struct {
	Step  string        `json:"step"`            // what it did, "the copy of the server"
	Bound time.Duration `json:"bound,omitempty"` // by when it had to be done, if that was exceeded
	Error string        `json:"error"`
	// First is the failure of an earlier run with the same seed, and half the time.
	First *HarnessFailure `json:"first,omitempty"`
}

// String says what failed, twice if the run was repeated.
func (h HarnessFailure) String() string {
	switch {
	case h.First == nil:
		return h.once()
	case h.First.Step == h.Step && h.First.Bound > 0 && h.Bound > 0:
		return fmt.Sprintf("%s took longer than %v twice, the second time than %v", h.Step, h.First.Bound, h.Bound)
	default:
		return fmt.Sprintf("twice: %s; then %s", h.First.once(), h.once())
	}
}

func (h HarnessFailure) once() string {
	if h.Bound > 0 {
		return fmt.Sprintf("%s took longer than %v", h.Step, h.Bound)
	}
	return fmt.Sprintf("%s failed: %s", h.Step, h.Error)
}

// Scope is a consumer and what it wants.
type Scope struct {
	Name   string   `json:"name"`
	Types  []string `json:"types,omitempty"`   // none: all
	AtHead bool     `json:"at_head,omitempty"` // it begins with what commits after its placement
	// Sometimes are types that only some of the workers' builds select.
	Sometimes []string `json:"sometimes,omitempty"`
	// Partitioned consumers are split and merged. Their units have standings, audit
	// rows, operations and breaches. An epoch is the consumer's: it counts the resets
	// of all units that it ever had.
	Partitioned bool `json:"partitioned,omitempty"`
	// NextOf is the consumer of which this one is the next version. It begins as a shadow, and
	// operators switch between both.
	NextOf string `json:"next_of,omitempty"`
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

// Selects reports whether a build of the consumer selects events of that type.
func (s Scope) Selects(aggregateType string) bool {
	return s.Wants(aggregateType) || slices.Contains(s.Sometimes, aggregateType)
}

// Selected is what a consumer's code selected from the log on its way to a position.
type Selected struct {
	Consumer string   `json:"consumer"`
	To       int64    `json:"to"`
	Types    []string `json:"types,omitempty"` // none: all
	Open     []Span   `json:"open,omitempty"`  // what was in doubt when other code took over
	// Contested is true if that other code selects less, and a worker lived whose code selects more.
	Contested bool `json:"contested,omitempty"`
}

// Event is an event as the writers, the log and the ledger know it.
type Event struct {
	Position int64     `json:"position"`
	Type     string    `json:"type"` // of the aggregate
	ID       string    `json:"id"`   // of the aggregate
	Version  int64     `json:"version"`
	EventID  uuid.UUID `json:"event"`
}

func (e Event) String() string {
	return fmt.Sprintf("position %d (%s/%s version %d)", e.Position, e.Type, e.ID, e.Version)
}

// Entry is an event that a consumer applied.
type Entry struct {
	Event
	Consumer string `json:"consumer"`
	Worker   string `json:"worker"`
	Batch    string `json:"batch"`            // the transaction that it was part of
	Late     bool   `json:"late,omitempty"`   // as the worker said when it delivered the event
	Replay   bool   `json:"replay,omitempty"` // likewise
	Epoch    int64  `json:"epoch,omitempty"`  // how often an operator had reset the consumer by then
}

// Span is the positions First to Last. It is not package store's Range: the
// judge imports nothing of what it judges.
type Span struct {
	First int64 `json:"first"`
	Last  int64 `json:"last"`
}

// Holds reports whether a position is one of them.
func (s Span) Holds(position int64) bool { return s.First <= position && position <= s.Last }

// Skip is a row of the audit: Missing positions of a span.
type Skip struct {
	Span
	Consumer string `json:"consumer"`
	Missing  int64  `json:"missing"`
	State    string `json:"state"`           // void, open or late
	Epoch    int64  `json:"epoch,omitempty"` // of the consumer, when the row was written
}

func (s Skip) String() string {
	return fmt.Sprintf("%d %s in [%d, %d]", s.Missing, s.State, s.First, s.Last)
}

// Placement is the first checkpoint of a consumer. The consumer does not get what is visible up to
// there. Whatever commits later lies above it.
type Placement struct {
	Consumer string `json:"consumer"`
	Position int64  `json:"position"`
	Visible  int64  `json:"visible"` // events up to Position, then
}

// Breach is a batch in which a handler ended the transaction that it was given.
type Breach struct {
	Consumer string `json:"consumer"`
	Worker   string `json:"worker"`
	Batch    string `json:"batch,omitempty"` // a transaction of the batch: its events may be applied again
	// Ended reports that the server has confirmed the end of that transaction, so
	// the worker must end, too. If it was a COMMIT, the repair must be audited.
	Ended     bool `json:"ended,omitempty"`
	Committed bool `json:"committed,omitempty"`
	// Life is the server's life in which the handler began to break the rules.
	Life int64 `json:"life,omitempty"`
	// Unknown are positions of which the ending worker does not know whether they were handled. An
	// operator must check.
	Unknown *Span `json:"unknown,omitempty"`
}

// Repair is a checkpoint that was set back after a breach.
type Repair struct {
	Consumer string `json:"consumer"`
	From     int64  `json:"from"`
	To       int64  `json:"to"`
	// Transaction is the handler's, in 32 bits.
	Transaction string `json:"transaction,omitempty"`
}

// Restore is when the server was set back to a copy: lives of the server, which
// are odd while it is down. What was committed in between is gone.
type Restore struct {
	Copied   int64 `json:"copied"`
	Restored int64 `json:"restored"`
}

// Standing is how far a consumer has come, as one snapshot shows it.
type Standing struct {
	Consumer   string `json:"consumer"`
	Checkpoint int64  `json:"checkpoint"`
	Revision   int64  `json:"revision"`
	Epoch      int64  `json:"epoch,omitempty"`
	Life       int64  `json:"life,omitempty"` // of the server; it ends with a crash
	Open       []Span `json:"open,omitempty"` // passed while they were in doubt
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
	Consumer string `json:"consumer"`
	Kind     string `json:"kind"`  // OperationReset or OperationSkip
	Epoch    int64  `json:"epoch"` // before it
	From     int64  `json:"from"`  // the checkpoint before it
	To       int64  `json:"to"`    // the checkpoint after a reset, the event that a skip left out
}

// What operators do, as the library calls it.
const (
	OperationReset = "reset"
	OperationSkip  = "skip"
)

// UnauthorizedBatch is a batch that was begun by a worker to which its consumer
// was not assigned.
type UnauthorizedBatch struct {
	Consumer string `json:"consumer"`
	Worker   string `json:"worker"`
	Batch    string `json:"batch"` // its transaction
}

// Assignment is an assignment that a worker has written.
type Assignment struct {
	Consumer string `json:"consumer"` // that it assigned
	Worker   string `json:"worker"`   // that wrote it
	Led      bool   `json:"led"`      // it was the leader then
}

// Sighting is the consumers' positions as a writer saw them while its own transaction, which owns
// these positions, had not been told to commit yet.
type Sighting struct {
	Positions []int64    `json:"positions"`
	Standings []Standing `json:"standings"`
}

// Exit is the end of a worker.
type Exit struct {
	Worker string        `json:"worker"`
	Asked  string        `json:"asked"`           // why it was to end, one of the exits below
	Error  string        `json:"error,omitempty"` // what it said; empty: nothing
	InTime bool          `json:"in_time"`
	Bound  time.Duration `json:"bound_ns"`
}

// Why workers end.
const (
	ExitStopped = "stopped"
	ExitCrashed = "crashed"
	ExitSlow    = "too slow to start" // it gave up before it ran, on a busy machine
	ExitOutage  = "started without a server"
	ExitLost    = "started without a server, as it says" // believed if the harness lost it, too
	ExitBroke   = "not to go on: its handler ended a transaction"
	ExitItself  = ""
)

// Rest is how everything came to rest after the faults had stopped.
type Rest struct {
	Head      int64         `json:"head"` // of the log
	Took      time.Duration `json:"took_ns"`
	Bound     time.Duration `json:"bound_ns"`
	Standings []Standing    `json:"standings"` // at the end
	// Partitions is how many parts the partitioned consumers were to have then.
	Partitions int `json:"partitions,omitempty"`
}
