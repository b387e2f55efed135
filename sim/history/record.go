package history

import (
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// Record is one thing that happened.
type Record struct {
	N        int     `json:"n"`             // from 1, without a gap
	At       float64 `json:"at"`            // seconds since the run began
	Who      string  `json:"who,omitempty"` // "worker 2.1": the first life of slot 2; "writer 3"
	Consumer string  `json:"consumer,omitempty"`
	Kind     Kind    `json:"kind"`
	About    any     `json:"about,omitempty"`
}

// Kind is the kind of a record. It determines the type of the record's About.
type Kind string

// The kinds.
const (
	RunBegan        Kind = "run"                // Header
	Begin           Kind = "begin"              // Transaction, of a writer, without positions
	Committed       Kind = "commit"             // Transaction
	RolledBack      Kind = "rollback"           // Transaction
	PreparedToEnd   Kind = "prepare"            // Transaction; its commit or rollback follows
	WorkerBegan     Kind = "worker started"     // Life
	WorkerEnded     Kind = "worker stopped"     // Life
	Leads           Kind = "leads"              //
	LeadsNoMore     Kind = "leads no more"      //
	Owns            Kind = "consumer started"   //
	OwnsNoMore      Kind = "consumer stopped"   //
	BatchEnded      Kind = "batch"              // Batch
	RetryAnnounced  Kind = "retry"              // Retry
	GapSkipped      Kind = "skip"               // Gap
	UnitsReplaced   Kind = "rescaled"           // Rescaled
	MergeRefused    Kind = "merge refused"      // Refusal
	ConsumerPaused  Kind = "paused"             // Life: Error is the reason
	FrontierBlocked Kind = "transaction blocks" // Blocker
	FaultInjected   Kind = "fault"              // Injection
	FaultOver       Kind = "fault over"         // Injection
	RuleBroken      Kind = "rule broken"        // Breach
	FaultsOver      Kind = "faults over"        //
	Sampled         Kind = "sample"             // Sample
	JobEnded        Kind = "job"                // JobDone; Consumer is the queue
	WorkerAdded     Kind = "worker of jobs"     // Runner, told by its process; no history has it
	HandlerCalled   Kind = "handler"            // HandlerRun, told by the process; no history has it
)

// Header says which run this is.
type Header struct {
	Seed      uint64   `json:"seed"`
	Repeat    string   `json:"repeat"`
	Workers   int      `json:"workers"`
	Writers   int      `json:"writers"`
	Consumers []string `json:"consumers"`
}

// Transaction is a writer's transaction. Its records share a number.
type Transaction struct {
	Tx         int    `json:"tx"`
	Positions  []Span `json:"positions,omitempty"`
	Abandoned  []Span `json:"abandoned,omitempty"`  // in a savepoint that was rolled back
	Fault      Fault  `json:"play,omitempty"`       // what was special about it
	Native     bool   `json:"native,omitempty"`     // it is of pgx, not of database/sql
	Unanswered bool   `json:"unanswered,omitempty"` // its COMMIT
	Error      string `json:"error,omitempty"`
}

// Life is the beginning or the end of a worker.
type Life struct {
	ID    string `json:"id,omitempty"`
	Error string `json:"error,omitempty"`
}

// Batch is a batch that has ended. Its record's time is its end.
type Batch struct {
	Outcome  string  `json:"outcome"` // committed, overtaken or failed
	Attempt  int     `json:"attempt"`
	Events   int     `json:"events"`
	Late     int     `json:"late,omitempty"`
	From     int64   `json:"from"`
	To       int64   `json:"to"`
	First    int64   `json:"first,omitempty"`
	Last     int64   `json:"last,omitempty"`
	ReadMS   float64 `json:"read_ms"`
	GuardMS  float64 `json:"guard_ms"`
	HandleMS float64 `json:"handle_ms"`
	CommitMS float64 `json:"commit_ms"`
	Error    string  `json:"error,omitempty"`
}

// How a batch ends.
const (
	BatchCommitted = "committed"
	BatchOvertaken = "overtaken"
	BatchFailed    = "failed"
)

// Retry says that a batch or the database failed and will be tried again.
type Retry struct {
	InARow    int     `json:"in_a_row"`
	PauseMS   float64 `json:"pause_ms"`
	ByHandler bool    `json:"by_handler,omitempty"`
	Error     string  `json:"error"`
}

// Gap is a row that went into the audit.
type Gap struct {
	Span
	Missing int64  `json:"missing"`
	State   string `json:"state"` // void, open or late
}

// Rescaled tells which units of a consumer were replaced by which.
type Rescaled struct {
	From     []string `json:"from"`
	To       []string `json:"to"`
	Position int64    `json:"position"`
}

// Refusal says why parts that were at a merge barrier were not merged.
type Refusal struct {
	Why string `json:"why"` // RefusedParts or RefusedEvent
}

// Why merges are refused.
const (
	RefusedParts = "a part was paused, moved or replaced"
	RefusedEvent = "an event had appeared that only some parts wait for"
)

// Blocker is a transaction that the frontier waits for.
type Blocker struct {
	Holder      string `json:"holder"`
	Application string `json:"application,omitempty"`
	State       string `json:"state,omitempty"`
	Prepared    bool   `json:"prepared,omitempty"`
}

// Injection is a fault as it was done to Who.
type Injection struct {
	Fault Fault  `json:"fault"`
	Where string `json:"where,omitempty"`
}

// Sample is how far everything has come.
type Sample struct {
	Head        int64            `json:"head"`
	Lag         int64            `json:"lag"` // of the consumer furthest behind
	Checkpoints map[string]int64 `json:"checkpoints"`
}

// UnmarshalJSON reads a line of WriteJSONLines. About gets the type that it had.
func (r *Record) UnmarshalJSON(text []byte) error {
	var read struct {
		bare
		About json.RawMessage `json:"about"`
	}
	if err := json.Unmarshal(text, &read); err != nil {
		return err
	}
	about, known := abouts[read.Kind]
	if !known {
		return fmt.Errorf("there is no kind of record %q", read.Kind)
	}
	*r = Record(read.bare)
	r.About = nil
	if about == nil {
		return nil
	}
	var err error
	r.About, err = about(read.About)
	return err
}

// bare is a Record without UnmarshalJSON.
type bare Record

// abouts read what each kind of record is about, if it is about anything.
var abouts = map[Kind]func(json.RawMessage) (any, error){
	RunBegan:        as[Header],
	Begin:           as[Transaction],
	Committed:       as[Transaction],
	RolledBack:      as[Transaction],
	PreparedToEnd:   as[Transaction],
	WorkerBegan:     as[Life],
	WorkerEnded:     as[Life],
	Leads:           nil,
	LeadsNoMore:     nil,
	Owns:            nil,
	OwnsNoMore:      nil,
	BatchEnded:      as[Batch],
	RetryAnnounced:  as[Retry],
	GapSkipped:      as[Gap],
	UnitsReplaced:   as[Rescaled],
	MergeRefused:    as[Refusal],
	ConsumerPaused:  as[Life],
	FrontierBlocked: as[Blocker],
	FaultInjected:   as[Injection],
	FaultOver:       as[Injection],
	RuleBroken:      as[Breach],
	FaultsOver:      nil,
	Sampled:         as[Sample],
	JobEnded:        as[JobDone],
	WorkerAdded:     as[Runner],
	HandlerCalled:   as[HandlerRun],
}

func as[T any](text json.RawMessage) (any, error) {
	var v T
	err := json.Unmarshal(text, &v)
	return v, err
}

// MS is a duration in milliseconds, to the microsecond.
func MS(d time.Duration) float64 {
	return math.Round(float64(d)/float64(time.Microsecond)) / 1000
}

// TextOf is the text of an error, empty for nil.
func TextOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
