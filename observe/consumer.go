package observe

import (
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/store"
)

// In an event about a consumer that is split into partitions, Consumer is the name of the
// unit, such as "totals#400-7ff".

// ConsumerStarted reports that a consumer was assigned to this worker, and its loop has
// begun.
type ConsumerStarted struct {
	Consumer   string
	Types      []string // aggregate types that its code selects; none: all
	Start      string   // start without a checkpoint: "head", or the position before the first event; "": the first event of the log
	BatchSize  int      // the most events in a batch
	Partitions int      // the number that its code demands; 1: the consumer stays whole
}

func (ConsumerStarted) level() slog.Level { return slog.LevelInfo }
func (e ConsumerStarted) line() (string, []slog.Attr) {
	return "consumer started", []slog.Attr{consumerOf(e.Consumer), slog.Any("types", e.Types), slog.String("start", e.Start),
		slog.Int("batch_size", e.BatchSize), slog.Int("partitions", e.Partitions)}
}

func consumerOf(name string) slog.Attr { return slog.String("consumer", name) }

// ConsumerStopped reports that the consumer's loop in this worker has ended.
type ConsumerStopped struct{ Consumer string }

func (ConsumerStopped) level() slog.Level { return slog.LevelInfo }
func (e ConsumerStopped) line() (string, []slog.Attr) {
	return "consumer stopped", []slog.Attr{consumerOf(e.Consumer)}
}

// ConsumerUnowned reports that no worker runs the consumer. The leader reports it once for
// each consumer, after a HeartbeatInterval.
type ConsumerUnowned struct {
	Consumer string
	Reason   string // with the remedy
}

func (ConsumerUnowned) level() slog.Level { return slog.LevelWarn }
func (e ConsumerUnowned) line() (string, []slog.Attr) {
	return "consumer unowned", []slog.Attr{consumerOf(e.Consumer), slog.String("reason", e.Reason)}
}

// ConsumerFailed reports that the consumer or one of its events has failed
// MaxConsecutiveFailures times in a row. The FailurePolicy applies.
type ConsumerFailed struct {
	Consumer string
	Policy   string // the FailurePolicy that applies
	Err      error  // a *worker.ConsumerError
}

func (ConsumerFailed) level() slog.Level { return slog.LevelError }
func (e ConsumerFailed) line() (string, []slog.Attr) {
	return "consumer failed too often", []slog.Attr{consumerOf(e.Consumer), slog.String("policy", e.Policy), failure(e.Err)}
}

// ConsumerPaused reports that no worker runs the consumer until an operator resumes it. The
// consumer has failed under FailPause, or its log may have been reset.
type ConsumerPaused struct {
	Consumer string
	Reason   string
}

func (ConsumerPaused) level() slog.Level { return slog.LevelError }
func (e ConsumerPaused) line() (string, []slog.Attr) {
	return "consumer paused", []slog.Attr{consumerOf(e.Consumer), slog.String("reason", e.Reason)}
}

// ConsumerWaiting reports that the consumer waits. Condition says for what. A wait for the
// lock of another transaction is reported again after growing pauses. The other waits are
// reported once: at WithMaxOpenRanges, for a worker whose build selects more, and to begin
// at the head of the log.
type ConsumerWaiting struct {
	Consumer  string
	Condition Condition // ConditionLock, ConditionDoubts, ConditionScope or ConditionStart
	Err       error     // names what the consumer waits for, and the remedy
}

func (ConsumerWaiting) level() slog.Level { return slog.LevelWarn }
func (e ConsumerWaiting) line() (string, []slog.Attr) {
	return "consumer waiting", []slog.Attr{consumerOf(e.Consumer), slog.String("condition", string(e.Condition)), failure(e.Err)}
}

// Retrying reports a failure after which the worker retries. A batch has failed, PostgreSQL
// has aborted it (a deadlock, a serialization failure), or statements fail.
type Retrying struct {
	Consumer  string
	Condition Condition // ConditionBatch, ConditionDatabase or ConditionKey
	InARow    int       // failures so far
	Pause     time.Duration
	ByHandler bool // the handler has failed; otherwise the database has
	Err       error
}

func (e Retrying) level() slog.Level {
	if e.Condition == ConditionBatch && !e.ByHandler {
		return slog.LevelInfo // a deadlock or a serialization failure
	}
	return slog.LevelWarn
}

func (e Retrying) line() (string, []slog.Attr) {
	return "batch failed, retrying", []slog.Attr{consumerOf(e.Consumer), slog.String("condition", string(e.Condition)), slog.Int("in_a_row", e.InARow),
		slog.Duration("pause", e.Pause), slog.Bool("by_handler", e.ByHandler), failure(e.Err)}
}

// DeadLetter is an event that its consumer does not handle until an operator has it
// retried.
type DeadLetter struct {
	Consumer      string
	AggregateType string
	AggregateID   string
	Position      int64
	EventID       uuid.UUID
	EventType     string
	Attempts      int
	Error         string // empty: the event follows an earlier dead letter of its aggregate
}

func (d DeadLetter) attrs() []slog.Attr {
	return []slog.Attr{consumerOf(d.Consumer), slog.Int64("position", d.Position), slog.Any("event_id", d.EventID), slog.String("event_type", errtext.Unquoted(d.EventType)),
		slog.String("aggregate_type", errtext.Unquoted(d.AggregateType)), slog.String("aggregate_id", errtext.Unquoted(d.AggregateID)),
		slog.Int("attempts", d.Attempts), slog.String("error", d.Error)}
}

// DeadLettered reports that an event has become a dead letter, under FailDeadLetter.
type DeadLettered struct{ DeadLetter }

func (DeadLettered) level() slog.Level             { return slog.LevelError }
func (e DeadLettered) line() (string, []slog.Attr) { return "event dead-lettered", e.attrs() }

// DeadLetterFailed reports that the retry of a dead letter has failed.
type DeadLetterFailed struct{ DeadLetter }

func (DeadLetterFailed) level() slog.Level             { return slog.LevelError }
func (e DeadLetterFailed) line() (string, []slog.Attr) { return "dead letter failed again", e.attrs() }

// Rescaled reports a split or a merge: units of a consumer were replaced by others with the
// same keys in total.
type Rescaled struct {
	Consumer string   // the whole consumer
	From, To []string // names of units; From or To has one name
	Position int64    // the checkpoint of all these units
}

func (Rescaled) level() slog.Level { return slog.LevelInfo }
func (e Rescaled) line() (string, []slog.Attr) {
	return "consumer rescaled", []slog.Attr{consumerOf(e.Consumer), slog.Any("from", e.From), slog.Any("to", e.To), slog.Int64("position", e.Position)}
}

// ScopeChanged reports that the consumer now runs with a build of other aggregate types or
// another version than the previous build. The table of operations records it too.
type ScopeChanged struct {
	Consumer string
	From, To string // descriptions of the scopes
	// Position is the checkpoint. Events of Added at or below it are not delivered, see
	// ops.Operator.ReplayTypes. Events of Removed above it are not delivered.
	Position       int64
	Added, Removed []string // aggregate types; empty if there are too many to name
	AllAdded       bool     // Added is all types except those selected before
	AllRemoved     bool     // Removed is all types except those selected now
}

func (ScopeChanged) level() slog.Level { return slog.LevelWarn }
func (e ScopeChanged) line() (string, []slog.Attr) {
	return "consumer selects other events", []slog.Attr{consumerOf(e.Consumer), slog.String("from", e.From), slog.String("to", e.To), slog.Int64("position", e.Position)}
}

// DeadBatchEnded reports that this worker has ended the batch of a dead worker. The batch
// still ran in the server and held the consumer's row.
type DeadBatchEnded struct {
	Consumer   string
	DeadWorker uuid.UUID
	PID        int64 // of the server process
}

func (DeadBatchEnded) level() slog.Level { return slog.LevelInfo }
func (e DeadBatchEnded) line() (string, []slog.Attr) {
	return "ended the batch of a dead worker", []slog.Attr{consumerOf(e.Consumer), slog.Any("dead_worker", e.DeadWorker), slog.Int64("pid", e.PID)}
}

// TransactionEnded reports that a handler has ended the transaction of its batch, or that
// an outage hides whether it has. The worker has set the checkpoint back if that was safe,
// and ends.
type TransactionEnded struct {
	Consumer string
	From     int64 // the checkpoint that the batch wrote
	To       int64 // the checkpoint now, as far as it is known
	Unknown  bool  // an outage hides whether the handler has ended the transaction
	Err      error // a *worker.ConsumerError; wraps worker.ErrTransactionEnded or worker.ErrOutcomeUnknown
}

func (TransactionEnded) level() slog.Level { return slog.LevelError }
func (e TransactionEnded) line() (string, []slog.Attr) {
	message := "handler ended its transaction"
	if e.Unknown {
		message = "batch outcome unknown"
	}
	return message, []slog.Attr{consumerOf(e.Consumer), slog.Int64("from", e.From), slog.Int64("to", e.To), failure(e.Err)}
}

// Skipped reports what a committed batch did about positions without an event. It passed
// them (SkipVoid, or SkipOpen, which opens a gap), or ended doubts about them (SkipLate,
// SkipVoid). The audit table has the same record.
type Skipped struct {
	store.Range
	Consumer string
	Missing  int64     // positions of the range without an event
	State    SkipState // whether they are void, open or late
}

func (e Skipped) level() slog.Level {
	if e.State == SkipVoid {
		return slog.LevelDebug // a rolled-back append
	}
	return slog.LevelInfo
}

func (e Skipped) line() (string, []slog.Attr) {
	return "positions skipped", []slog.Attr{consumerOf(e.Consumer), slog.Int64("first", e.First), slog.Int64("last", e.Last),
		slog.Int64("missing", e.Missing), slog.String("state", string(e.State))}
}
