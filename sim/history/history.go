// Package history is what is written down while workers are put to the test,
// and afterwards: the records of what happened, and the evidence that the
// oracle judges by. It knows neither workers nor databases, so that whoever
// drives them can write it and whoever has it can judge it again.
package history

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"time"
)

// History is what happened in a run, in order of time. Nothing in it is ever
// changed or taken out.
type History struct {
	began time.Time

	tell func(Record) // in place of keeping them

	mu      sync.Mutex
	records []Record
}

// Record is one thing that happened.
type Record struct {
	N        int     `json:"n"`             // from 1, without a gap
	At       float64 `json:"at"`            // seconds since the run began
	Who      string  `json:"who,omitempty"` // "worker 2.1": the first life of slot 2; "writer 3"
	Consumer string  `json:"consumer,omitempty"`
	Kind     Kind    `json:"kind"`
	About    any     `json:"about,omitempty"`
}

// Kind is what a record tells of, and with it what its About is.
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
	ConsumerPaused  Kind = "paused"             // Life: Error is the reason
	FrontierBlocked Kind = "transaction blocks" // Blocker
	FaultInjected   Kind = "fault"              // Injection
	FaultOver       Kind = "fault over"         // Injection
	FaultsOver      Kind = "faults over"        //
	Sampled         Kind = "sample"             // Sample
)

// Header says which run this is.
type Header struct {
	Seed      uint64   `json:"seed"`
	Repeat    string   `json:"repeat"`
	Workers   int      `json:"workers"`
	Writers   int      `json:"writers"`
	Consumers []string `json:"consumers"`
}

// Transaction is one of a writer's; its records share a number.
type Transaction struct {
	Tx         int    `json:"tx"`
	Positions  []Span `json:"positions,omitempty"`
	Abandoned  []Span `json:"abandoned,omitempty"`  // in a savepoint that was rolled back
	Play       Fault  `json:"play,omitempty"`       // what was special about it
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

// NewHistory is a history that begins now.
func New(began time.Time) *History { return &History{began: began} }

// Tell is a history that keeps nothing: each record goes to tell, one at a time.
func Tell(began time.Time, tell func(Record)) *History { return &History{began: began, tell: tell} }

// Of is the history of records that were written down before.
func Of(records []Record) *History { return &History{began: time.Now(), records: records} }

// Add writes down what happened just now.
func (h *History) Add(who, consumer string, kind Kind, about any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := math.Round(time.Since(h.began).Seconds()*1e6) / 1e6
	if h.tell != nil {
		h.tell(Record{0, at, who, consumer, kind, about})
		return
	}
	h.records = append(h.records, Record{len(h.records) + 1, at, who, consumer, kind, about})
}

// Records are all that there are by now.
func (h *History) Records() []Record {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clip(h.records)
}

// WriteJSONLines writes one record to a line.
func (h *History) WriteJSONLines(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	for _, r := range h.Records() {
		if err := e.Encode(r); err != nil {
			return fmt.Errorf("sim: write the history: %w", err)
		}
	}
	return nil
}

// Spans joins positions that follow each other.
func Spans(positions []int64) []Span {
	var all []Span
	for _, p := range slices.Sorted(slices.Values(positions)) {
		if n := len(all); n > 0 && all[n-1].Last == p-1 {
			all[n-1].Last = p
		} else {
			all = append(all, Span{p, p})
		}
	}
	return all
}

// PositionsOf are the positions of events.
func PositionsOf(events []Event) (all []int64) {
	for _, e := range events {
		all = append(all, e.Position)
	}
	return all
}
