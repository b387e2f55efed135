package observe

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
)

// State is a worker's state.
type State string

const (
	StateNew      State = "new"      // Start was not called yet
	StateStarting State = "starting" // checks and registers
	StateRunning  State = "running"
	StateDraining State = "draining" // finishes the batches in flight
	StateDrained  State = "drained"  // an operator has drained the worker: nothing runs, and Start waits for Stop
	StateStopped  State = "stopped"  // Start has returned
)

// Status is a snapshot of a worker for health checks and debugging.
type Status struct {
	State State
	// Leader reports whether this worker assigns the consumers.
	Leader bool
	// LastHeartbeat is the time of this worker's last heartbeat, by this process's clock.
	LastHeartbeat time.Time
	// CoordinationError is why heartbeat, leadership or assignment fail at the moment, or
	// nil.
	CoordinationError error
	// Unowned are the consumers that no worker runs. Either no live worker has code for the
	// consumer, for example because its build is older. Or the consumer's assignment does
	// not stay as the leader writes it. ConsumerUnowned gives the reason. Only the leader
	// knows them, after a HeartbeatInterval.
	Unowned []string
	// FrontierError is why the worker cannot read the log at the moment, or nil. Safe does
	// not move then. A *SetupError names the change in the database, and the remedy.
	FrontierError error
	// LastRead is when the worker last read the log, by this process's clock. While it cannot, Safe,
	// Settled, Head and Blocked are as of then. It is the zero time before the first read.
	LastRead time.Time
	// NotifyError is why notifications do not arrive with DispatcherStrategyNotify, with
	// the remedy. It is nil while no failure is known. Meanwhile the worker polls once a
	// second.
	NotifyError error
	// Safe is the position up to which consumers may read.
	Safe int64
	// Settled is the position up to which every position is visible or void.
	Settled int64
	// Head is the highest position of a visible event, as of the latest read of the log. It
	// is above Safe while open transactions may still fill gaps.
	Head int64
	// SafeStill is how long Safe has not moved while Head was above it, by this process's
	// clock. It is 0 if Safe moves or equals Head.
	SafeStill time.Duration
	// LoopError names a loop of this worker that hangs, or is nil. The other fields may be
	// outdated then. Only a new process helps.
	LoopError error
	// Blocked are the transactions that hold the consumers back, or that may still own
	// positions that the consumers have passed. The oldest is first.
	Blocked []BlockingTransaction
	// MaxOpenRanges is the value of WithMaxOpenRanges.
	MaxOpenRanges int
	Consumers     []ConsumerStatus // all that this worker has, in order of name
}

// ConsumerStatus is the part of a Status about one consumer.
type ConsumerStatus struct {
	// Name is the consumer's name. While the consumer is split, a part that this worker
	// runs has a ConsumerStatus of its own. Its name includes the part, such as
	// "totals_v1#400-7ff".
	Name      string
	Consumer  string // without the part
	Partition string // as in [consumer.Delivery]; empty for the whole consumer
	Assigned  bool   // to this worker
	// Position is the last checkpoint that this worker knows. Other workers may have moved
	// it on.
	Position int64
	// Lag is the number of positions between Position and Safe, which the consumer may read
	// and has not passed. A part also passes events of other parts, and commits them later.
	// So its Lag, HeadLag, OldestAge and Still count from the position that it has passed.
	//
	// Lag is nil while another worker or no worker runs the consumer. It is also nil until
	// this worker has loaded the consumer's progress. Only the worker that runs a consumer
	// knows its position.
	Lag *int64 `json:",omitempty"`
	// HeadLag is the number of positions between Position and Head, including those that
	// open transactions hold back. It is nil if Lag is nil.
	HeadLag *int64 `json:",omitempty"`
	// OldestAge is how long the first event above Position has been waiting, by the
	// database's clock, as of the latest read. Worker.Ready reads it. The worker itself
	// reads it at least once per MaxPollInterval while the consumer is behind. OldestAge
	// is 0 if no event waits. It is nil if Lag is nil, and if the event store is no
	// [store.AgeReader].
	//
	// For a consumer that names types, it is the age of the first event of these types. For
	// a part, it is the age of the consumer's first event, which may belong to another
	// part. The part's own first event is not older. Events that wait for a retry as dead
	// letters do not count. Nor do events that appear late, below Position.
	OldestAge *time.Duration `json:",omitempty"`
	// Still is how long Position has not moved in this worker while an event was waiting.
	// It uses this process's clock, whatever time the event has. It is 0 if Position moves,
	// if no event waits, or if that is unknown. While this worker runs a consumer and has
	// not loaded its progress, Still is the time since the run began.
	Still time.Duration
	// Handled counts the events that this worker handled and committed.
	Handled int64
	// Failures counts the handler's failures since its last success.
	Failures int
	// Stuck is the position of the event that failed last, or of an event whose handler
	// runs beyond its time. It is the argument for ops.SkipEvent. 0 means that no such
	// event is known.
	Stuck int64
	// Paused says who has paused the consumer, or is nil. Another worker may know of a
	// newer state.
	Paused *Pause
	// DeadLetters is the number of aggregates with dead letters, up to 100. For a consumer
	// with a key of its own it is the number of keys.
	DeadLetters int
	// OpenRanges is the number of ranges of positions in doubt that the consumer has
	// passed. At WithMaxOpenRanges the consumer waits.
	OpenRanges int
	// LastError is the last failure of the handler or the database, or nil since the last
	// success. While a batch waits for another transaction's lock, LastError names that
	// transaction. While a handler ignores the end of its context, LastError wraps
	// ErrHandlerOverdue.
	LastError error
}

// Pause says since when a consumer is paused, by whom and why.
type Pause struct {
	Since  time.Time
	By     string // an operator, or "worker" and its id
	Reason string
}

// MarshalJSON writes the fields under their names, and errors as their texts.
func (s Status) MarshalJSON() ([]byte, error) {
	type fields Status
	return json.Marshal(struct {
		fields
		CoordinationError string `json:",omitempty"`
		FrontierError     string `json:",omitempty"`
		NotifyError       string `json:",omitempty"`
		LoopError         string `json:",omitempty"`
	}{fields(s), errtext.Storable(s.CoordinationError), errtext.Storable(s.FrontierError), errtext.Storable(s.NotifyError), errtext.Storable(s.LoopError)})
}

// MarshalJSON writes the fields under their names, and errors as their texts. It adds
// LastErrorState, the SQLSTATE of LastError, if there is one.
func (s ConsumerStatus) MarshalJSON() ([]byte, error) {
	type fields ConsumerStatus
	return json.Marshal(struct {
		fields
		LastError      string `json:",omitempty"`
		LastErrorState string `json:",omitempty"`
	}{fields(s), errtext.Storable(s.LastError), sqlState(s.LastError)})
}

// sqlState returns the SQLSTATE of an error, or "" if it has none.
func sqlState(err error) string {
	var s interface{ SQLState() string }
	if errors.As(err, &s) {
		return s.SQLState()
	}
	return ""
}
