package observe

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
)

// State is where a worker is in its life.
type State string

const (
	StateNew      State = "new"      // Start was not called yet
	StateStarting State = "starting" // checks and registers
	StateRunning  State = "running"
	StateDraining State = "draining" // finishes the batches in hand
	StateDrained  State = "drained"  // as an operator asked: nothing runs, and Start waits for Stop
	StateStopped  State = "stopped"  // Start has returned
)

// Status is a snapshot of a worker for health checks and debugging.
type Status struct {
	State State
	// Leader tells whether this worker assigns the consumers.
	Leader bool
	// LastHeartbeat is when this worker last told the others that it is
	// alive, by this process's clock.
	LastHeartbeat time.Time
	// CoordinationError is why heartbeat, leadership or assignment do not work
	// at the moment, nil if they do.
	CoordinationError error
	// Unowned are the consumers that nobody runs: those that no live worker has
	// code for, of an older build for one, and those whose assignment does not
	// stay as the leader writes it. ConsumerUnowned says which. Only the leader knows
	// them, after a HeartbeatInterval.
	Unowned []string
	// FrontierError is why the worker cannot read the log at the moment, so that
	// Safe stands still; nil if it can. A *SetupError says what was altered in the
	// database, and the remedy.
	FrontierError error
	// NotifyError is why notifications do not arrive, with DispatcherStrategyNotify,
	// and what to do about it; nil while nothing is known to be wrong. Events are
	// found by a poll each second meanwhile.
	NotifyError error
	// Safe is the position up to which consumers may read.
	Safe int64
	// Settled is the position up to which every position is visible, or void.
	Settled int64
	// Head is the highest position of a visible event, as of the latest look at
	// the log. Above Safe while open transactions may still fill gaps.
	Head int64
	// SafeStill is for how long Safe has not moved while Head was above it, by this
	// process's clock. 0 if it moves, or has nowhere to go.
	SafeStill time.Duration
	// LoopError says which loop of this worker hangs, nil if none does. Its other
	// fields may be old then. Only a new process mends it.
	LoopError error
	// Blocked are the transactions that hold the consumers back, or that may
	// still own positions which the consumers have passed. The oldest first.
	Blocked []BlockingTransaction
	// MaxOpenRanges is as WithMaxOpenRanges says.
	MaxOpenRanges int
	Consumers     []ConsumerStatus // all that this worker has, in order of name
}

// ConsumerStatus is the part of a Status about one consumer.
type ConsumerStatus struct {
	// Name is the consumer's. While it is split, each part that this worker runs
	// has a ConsumerStatus: its name has the part, such as "totals_v1#400-7ff".
	Name      string
	Consumer  string // without the part
	Partition string // as in [consumer.Delivery]; empty for the whole consumer
	Assigned  bool   // to this worker
	// Position is the last checkpoint that this worker knows of; other workers
	// may have gone on from it.
	Position int64
	// Lag counts the positions between Position and Safe: what may be read and
	// was not. A part also passes events of other parts, and commits that a while later: its
	// Lag, HeadLag, OldestAge and Still are from where it is.
	// Lag is nil while another worker runs the consumer, or nobody does,
	// and until this worker has loaded the consumer's progress: only the worker
	// that runs a consumer knows how far it is.
	Lag *int64 `json:",omitempty"`
	// HeadLag counts the positions between Position and Head, those that open
	// transactions hold back included. It is nil where Lag is, and while the
	// worker cannot look at the log.
	HeadLag *int64 `json:",omitempty"`
	// OldestAge is how long the first event above Position has been waiting, by the
	// database's clock, as of the latest look: Worker.Ready looks, and the worker
	// itself at least every MaxPollInterval while the consumer is behind. It is 0 if
	// there is no such event, and nil where Lag is, and if the event store is no
	// [store.AgeReader].
	//
	// Of a consumer that names types, it is the first event of its types. Of a part, it
	// is the first one of the consumer, which may be of another part: that of the part
	// is no older. Events that wait for a retry as dead letters do not count, nor
	// do those that appear late, below Position.
	OldestAge *time.Duration `json:",omitempty"`
	// Still is for how long Position has not moved in this worker while an event was
	// waiting, by this process's clock, whatever time the event bears. 0 if it moves, if no
	// event waits, and where nobody knows. While this worker has not loaded the progress of
	// a consumer that it runs, it is for how long.
	Still time.Duration
	// Handled counts the events that this worker handled and committed.
	Handled int64
	// Failures counts the handler's failures since its last success.
	Failures int
	// Stuck is the position of the event that failed last, or that a handler was given and
	// holds beyond its time: what ops.SkipEvent takes. 0: there is none, or it is not known.
	Stuck int64
	// Paused says who keeps the consumer from running, nil if nobody does, as
	// far as this worker knows.
	Paused *Pause
	// DeadLetters counts the aggregates that have dead letters, or the keys of a
	// consumer with a key of its own, up to 100.
	DeadLetters int
	// OpenRanges counts the ranges of positions that the consumer has passed while
	// they were in doubt. At WithMaxOpenRanges it waits.
	OpenRanges int
	// LastError is the last failure or database trouble, nil since the last
	// success. While a batch waits for another transaction's lock, it says for
	// whose; while a handler ignores the end of its context, it wraps
	// ErrHandlerOverdue.
	LastError error
}

// Pause says since when a consumer does not run, and why.
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

// MarshalJSON writes the fields under their names, and errors as their texts. LastErrorState is the
// SQLSTATE of LastError, if it has one.
func (s ConsumerStatus) MarshalJSON() ([]byte, error) {
	type fields ConsumerStatus
	return json.Marshal(struct {
		fields
		LastError      string `json:",omitempty"`
		LastErrorState string `json:",omitempty"`
	}{fields(s), errtext.Storable(s.LastError), sqlState(s.LastError)})
}

// sqlState returns the SQLSTATE of an error, "" if it has none.
func sqlState(err error) string {
	var s interface{ SQLState() string }
	if errors.As(err, &s) {
		return s.SQLState()
	}
	return ""
}
