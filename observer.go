package worker

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/store"
)

// Observer is told what happens, for logs, metrics and alarms: it is the only
// voice of a worker. Every field may be nil. Calls come from the worker's own
// goroutines, several at a time: return soon, and do not call Stop and wait. A
// panic ends the call and not the worker; the first of each hook is told by
// HookPanicked. runtime.Goexit, which FailNow of testing calls, ends the worker
// with an error: use t.Error in a hook.
//
// Where a hook tells of a consumer that is split, it names the unit, as
// [ConsumerStatus] does.
type Observer struct {
	// WorkerStarted: the checks are done, the worker is registered and runs.
	WorkerStarted func(WorkerInfo)
	// WorkerStopped: everything has ended; Err says why if it is no clean stop.
	WorkerStopped func(WorkerInfo)
	// ShutdownTimedOut: a stop has taken longer than WithShutdownTimeout, and the
	// batches in hand are rolled back.
	ShutdownTimedOut func(WorkerInfo)
	// WorkerReregistered: the worker's row was gone, and it registers again.
	WorkerReregistered func(WorkerInfo)
	// StaleWorkersRemoved: this worker has removed so many rows of workers that are long dead,
	// when it registered or as the leader.
	StaleWorkersRemoved func(rows int)
	// RolesHidden: this role cannot see what transactions of the named roles do,
	// which may append events. It takes them to be busy. GRANT pg_read_all_stats
	// to it.
	RolesHidden func(roles string)
	// LeadershipChanged: this worker assigns the consumers from now on, or no
	// longer.
	LeadershipChanged func(Leadership)
	// Rebalanced: this worker leads and has changed assignments.
	Rebalanced func(Rebalance)
	// CoordinationFailed: heartbeats and assignments do not work, and will be
	// tried again; called for every try.
	CoordinationFailed func(error)

	// ConsumerStarted and ConsumerStopped: a consumer was assigned to this
	// worker and its loop has begun, or the loop has ended.
	ConsumerStarted, ConsumerStopped func(ConsumerInfo)
	// ConsumerUnowned: nobody runs a consumer; Reason says why, and the remedy.
	// Called on the leader, once for each, after a HeartbeatInterval.
	ConsumerUnowned func(ConsumerInfo)
	// ConsumerFailed: it, or one of its events, has failed
	// MaxConsecutiveFailures times in a row, and the FailurePolicy applies.
	ConsumerFailed func(ConsumerFailure)
	// ConsumerPaused: nobody runs it until an operator resumes it. It has failed
	// under FailPause, or its log may have begun again.
	ConsumerPaused func(ConsumerInfo)
	// ConsumerWaiting: it waits for another transaction's lock (told again after
	// growing pauses), or (told once) at WithMaxOpenRanges, or as a worker runs whose
	// build selects more, or to begin at the head.
	ConsumerWaiting func(ConsumerWait)

	// BatchStarted: a batch is about to begin its transaction. The durations
	// but Read are not known yet.
	BatchStarted func(Batch)
	// BatchDone: it was committed, or it failed (Err). A batch that found
	// itself overtaken by another worker is Overtaken and has done nothing.
	BatchDone func(Batch)
	// HandlerOverdue: a second ago the context of a batch ended, because
	// BatchTimeout has passed or the worker stops, and the handler still runs.
	// Err says why it ended.
	HandlerOverdue func(Batch)
	// Retrying: a batch failed, was sacrificed (deadlock, serialization failure),
	// or the database failed, and it will be tried again.
	Retrying func(Retry)
	// DeadLettered: an event went to the dead letters, under FailDeadLetter.
	DeadLettered func(DeadLetter)
	// DeadLetterFailed: an operator had it tried again, and it has failed again.
	DeadLetterFailed func(DeadLetter)
	// Rescaled: units of a consumer were replaced by others, which have the same
	// keys between them: a split, or a merge.
	Rescaled func(Rescaled)
	// ScopeChanged: a build with other aggregate types or another version than the previous
	// build runs the consumer.
	ScopeChanged func(ScopeChange)
	// DeadBatchEnded: the batch of a dead worker lived on in the server, held a
	// consumer's row, and was ended.
	DeadBatchEnded func(DeadBatch)
	// TransactionEnded: a handler has ended the transaction of its batch, or
	// nobody knows whether. The checkpoint was set back where that was safe, and
	// the worker ends.
	TransactionEnded func(TransactionEnd)

	// FrontierBlocked: a transaction has held back the events behind its
	// positions for longer than StaleGapThreshold. Once for each.
	FrontierBlocked func(BlockingTransaction)
	// FrontierFailed: the worker cannot read the event log, and will try again;
	// called for every try. Nothing new may be handled meanwhile. The cause is
	// the database's, or a *SetupError: something was altered that the proof
	// rests on.
	FrontierFailed func(error)
	// Skipped: a consumer's batch was committed that went past positions
	// without an event (SkipVoid, or SkipOpen: a gap opens), or that ended
	// doubts about such positions (SkipLate: delivered late, or SkipVoid). The
	// same is in the audit table.
	Skipped func(Skip)
	// NotifyFailed: with DispatcherStrategyNotify, notifications do not arrive:
	// the listening connection was lost (for every try) or does not answer, leads
	// to another database, or nobody notifies the channel. Events are found by a
	// poll each second meanwhile.
	NotifyFailed func(error)
	// Recovered: a trouble that was told is over; once for each. The troubles of a
	// consumer whose loop ends go with it, untold: ConsumerStopped ends them.
	Recovered func(Recovery)
	// Woken: something made the worker poll before its time.
	Woken func(Wakeup)
	// PoolTooSmall: the pool closes connections that are needed again at once, as
	// it keeps few idle ones: raise SetMaxIdleConns. Told once.
	PoolTooSmall func(PoolUse)
	// PoolSwept: idle connections of the pool did not answer, and were closed.
	PoolSwept func(PoolSweep)
	// TaskFailed: the start, or a task in the background, failed. It will be tried again, or
	// others make up for it.
	TaskFailed func(TaskFailure)
	// HookPanicked: a hook of an Observer panicked. Told once for each hook.
	HookPanicked func(HookPanic)

	logger *slog.Logger // that all hooks log to, as NewSlogObserver has made them
	logs   bool         // it logs, or it stands for a log that is switched off
}

// WorkerInfo names a worker.
type WorkerInfo struct {
	ID        uuid.UUID
	Consumers int   // that it has code for
	Err       error // why it stopped, nil after a clean stop
	Drained   bool  // an operator asked it to drain: without an Err, Start goes on waiting for Stop
}

// Leadership tells whether this worker assigns the consumers.
type Leadership struct {
	ID     uuid.UUID
	Leader bool
}

// Rebalance is a change of the assignments.
type Rebalance struct {
	Workers int // that live
	Changes int // consumers that were assigned, or taken from somebody
}

// ConsumerFailure is a consumer that has failed too often in a row.
type ConsumerFailure struct {
	Consumer string
	Policy   FailurePolicy // that applies now
	Err      error         // a *ConsumerError
}

// ConsumerWait is what a consumer waits for.
type ConsumerWait struct {
	Consumer string
	Trouble  Trouble // TroubleLock, TroubleDoubts, TroubleScope or TroubleStart; Recovered tells its end
	Err      error   // names what it waits for, and the remedy
}

// ConsumerInfo names a consumer. ConsumerStarted tells what its code selects, too.
type ConsumerInfo struct {
	Consumer string
	Reason   string // why it was paused, or is not run

	Types      []string // that it selects; none: all
	Start      string   // where it begins without a checkpoint: "head", or the position before; "": at the first event
	BatchSize  int      // events in a batch, at most
	Partitions int      // that its code wishes for; 1: it stays whole
}

// Batch describes a batch and how long its parts took.
type Batch struct {
	Consumer    string
	Attempt     int   // from 1
	Events      int   // given to the handler; after an early commit, handled
	Late        int   // of these, how many are behind the checkpoint
	From, To    int64 // the checkpoint before and after
	First, Last int64 // positions of the first and the last event, 0 without any

	Read   time.Duration // of the events; also when they were read ahead
	Guard  time.Duration // begin, and the checkpoint's row locked and moved
	Handle time.Duration
	Commit time.Duration

	Overtaken bool
	Err       error // nil: committed, unless Overtaken
}

// DeadBatch is the transaction of a worker that has died.
type DeadBatch struct {
	Consumer string
	Worker   uuid.UUID // the dead one
	PID      int64     // of the server's process
}

// Rescaled tells which units of a consumer were replaced by which. A unit is named
// as in [ConsumerStatus].
type Rescaled struct {
	Consumer string
	From, To []string // one of them has one unit
	Position int64    // where they stand
}

// ScopeChange is a change of the aggregate types, or of the version, of the code that runs a
// consumer. The table of operations keeps it too.
type ScopeChange struct {
	Consumer string
	From, To string // in words
	// Position is the checkpoint. Events of Added at or below it are not delivered, see
	// ops.Operator.ReplayTypes; those of Removed above it are not, either.
	Position       int64
	Added, Removed []string // types; none where there are too many to name
	AllAdded       bool     // all types but those that were selected
	AllRemoved     bool     // all types but those that are selected
}

// TransactionEnd is a batch whose handler has ended its transaction.
type TransactionEnd struct {
	Consumer string
	From     int64 // the checkpoint that the batch wrote
	To       int64 // the checkpoint now, as far as it is known
	Err      error // a *ConsumerError; wraps ErrTransactionEnded or ErrOutcomeUnknown
}

// Retry announces another try.
type Retry struct {
	Consumer  string
	Trouble   Trouble // TroubleBatch, TroubleDatabase or TroubleKey; Recovered tells its end
	InARow    int     // failures so far
	Pause     time.Duration
	ByHandler bool // the handler's failure; otherwise the database's
	Err       error
}

// DeadLetter is an event that its consumer will not handle for now.
type DeadLetter struct {
	Consumer      string
	AggregateType string
	AggregateID   string
	Position      int64
	EventID       uuid.UUID
	EventType     string
	Attempts      int
	Error         string // empty: it follows an earlier one of its aggregate
}

// Skip is one row of the audit of skipped positions.
type Skip struct {
	store.Range
	Consumer string
	Missing  int64     // how many positions of the range
	State    SkipState // what is known of them
}

// SkipState is what is known of a skipped position.
type SkipState string

const (
	SkipVoid SkipState = "void" // proven never to appear
	SkipOpen SkipState = "open" // in doubt when passed; it is being watched
	SkipLate SkipState = "late" // appeared after it was passed, and was delivered
)

// Wakeup is a reason to poll at once.
type Wakeup struct{ Source WakeupSource }

// WakeupSource is where a wakeup came from.
type WakeupSource string

const (
	WakeupEvents  WakeupSource = "events"  // a notification from the event store
	WakeupChanges WakeupSource = "changes" // workers, assignments or operators
)

// PoolUse is how the worker's use exceeds what the pool keeps.
type PoolUse struct {
	Closed      int64         // connections that the pool has closed
	Within      time.Duration // that time
	Recommended int           // for SetMaxIdleConns
}

// PoolSweep is a test of the idle connections of the pool.
type PoolSweep struct {
	Idle  int // connections
	Alive int // of these; the others were closed
}

// TaskFailure is a task in the background that has failed.
type TaskFailure struct {
	Task     string // what was tried, in a few words that stay the same
	Consumer string // empty: it was not for one consumer
	Err      error
}

// HookPanic is a panic of an Observer's hook.
type HookPanic struct {
	Hook  string   // its field
	Panic string   // the value
	Stack []string // by line
}

// tell calls a hook if it is there.
func tell[T any](hook func(T), about T) {
	if hook != nil {
		hook(about)
	}
}

// skipped reports a committed batch's marks.
func (o Observer) skipped(consumer string, marks []progress.Mark) {
	if o.Skipped == nil {
		return
	}
	for _, m := range marks {
		o.Skipped(Skip{Range: m.Range, Consumer: consumer, Missing: m.Missing, State: SkipState(m.State)})
	}
}

// deadLettered reports a committed batch's dead letters.
func (o Observer) deadLettered(consumer string, letters []progress.DeadLetter) {
	if o.DeadLettered == nil {
		return
	}
	for _, l := range letters {
		if l.Replay {
			continue // nothing has failed
		}
		o.DeadLettered(DeadLetter{consumer, l.Type, l.ID, l.Position, l.EventID, l.EventType, l.Attempts, l.Error})
	}
}

// deadLetterFailed reports a dead letter that has failed again.
func (o Observer) deadLetterFailed(consumer string, r result) {
	e := r.work.Events[0]
	tell(o.DeadLetterFailed, DeadLetter{consumer, e.AggregateType, e.AggregateID, e.GlobalPosition, e.EventID, e.EventType, r.work.retried.Attempts + 1, errtext.Storable(r.err)})
}

// Tasks that log in silence.
const (
	taskWatch    = "watch checkpoints"
	taskAnnounce = "announce progress"
)

// taskFailed reports err, if it is one and not the end of ctx.
func (w *Worker) taskFailed(ctx context.Context, task, consumer string, err error) {
	if err != nil && ctx.Err() == nil {
		tell(w.observer.TaskFailed, TaskFailure{task, consumer, errtext.Of(explain(err))})
	}
}

// batchDone reports a batch with its result.
func (o Observer) batchDone(b *Batch, r result) {
	if o.BatchDone == nil {
		return
	}
	b.Overtaken, b.Err = r.outcome == overtaken, r.err
	o.BatchDone(*b)
}

// describe describes a batch that is about to begin.
func (c *consumerLoop) describe(w *work) *Batch {
	b := &Batch{Consumer: c.unit.name, Attempt: c.tallyOf(w.retried).attempt(), Events: len(w.Events), From: w.from.Position, To: w.advance.To, Read: w.Took}
	if n := len(w.Events); n > 0 {
		b.First, b.Last = w.Events[0].GlobalPosition, w.Events[n-1].GlobalPosition
	}
	b.Late = w.late()
	return b
}
