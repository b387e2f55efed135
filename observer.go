package worker

import (
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/store"
)

// Observer is told what happens, for metrics and alarms. Every field may be
// nil. Calls come from the worker's own goroutines, several at a time: return
// soon, and do not call Stop and wait. A panic ends the call and not the
// worker; the first of each hook is logged. runtime.Goexit, which FailNow of
// testing calls, ends the worker with an error: use t.Error in a hook.
type Observer struct {
	// WorkerStarted: the checks are done, the worker is registered and runs.
	WorkerStarted func(WorkerInfo)
	// WorkerStopped: everything has ended; Err says why if it is no clean stop.
	WorkerStopped func(WorkerInfo)
	// LeadershipChanged: this worker assigns the consumers from now on, or no
	// longer.
	LeadershipChanged func(Leadership)

	// ConsumerStarted and ConsumerStopped: a consumer was assigned to this
	// worker and its loop has begun, or the loop has ended.
	ConsumerStarted, ConsumerStopped func(ConsumerInfo)
	// ConsumerUnowned: nobody runs a consumer; Reason says why, and the remedy.
	// Called on the leader, once for each, after a HeartbeatInterval.
	ConsumerUnowned func(ConsumerInfo)
	// ConsumerPaused: it failed MaxConsecutiveFailures times in a row, under
	// FailPause.
	ConsumerPaused func(ConsumerInfo)

	// BatchStarted: a batch is about to begin its transaction. The durations
	// but Read are not known yet.
	BatchStarted func(Batch)
	// BatchDone: it was committed, or it failed (Err). A batch that found
	// itself overtaken by another worker is Overtaken and has done nothing.
	BatchDone func(Batch)
	// HandlerOverdue: a second ago the context of a batch ended, because
	// BatchTimeout has passed or the worker stops, and the handler still runs.
	HandlerOverdue func(Batch)
	// Retrying: a batch failed, was sacrificed (deadlock, serialization failure),
	// or the database failed, and it will be tried again.
	Retrying func(Retry)
	// DeadLettered: an event went to the dead letters, under FailDeadLetter.
	DeadLettered func(DeadLetter)

	// FrontierBlocked: a transaction has held back the events behind its
	// positions for longer than StaleGapThreshold. Once for each.
	FrontierBlocked func(BlockingTransaction)
	// FrontierFailed: the worker could not look at the log, and will try again;
	// called for every try. Nothing new may be handled meanwhile. The cause is
	// the database's, or a *frontier.SetupError: something was altered that the
	// proof rests on.
	FrontierFailed func(error)
	// Skipped: a consumer's batch was committed that went past positions
	// without an event (SkipVoid, or SkipOpen: a gap opens), or that ended
	// doubts about such positions (SkipLate: delivered late, or SkipVoid). The
	// same is in the audit table.
	Skipped func(Skip)
	// NotifyFailed: with DispatcherStrategyNotify, notifications do not arrive:
	// the listening connection was lost (for every try) or does not answer, leads
	// to another database, or nobody notifies the channel. Events are found by a
	// look each second meanwhile.
	NotifyFailed func(error)
	// Recovered: a trouble that was told, here or in the log, is over; once for
	// each. The troubles of a consumer whose loop ends go with it, untold:
	// ConsumerStopped ends them.
	Recovered func(Recovery)
	// Woken: something made the worker look before its time.
	Woken func(Wakeup)
}

// WorkerInfo names a worker.
type WorkerInfo struct {
	ID  uuid.UUID
	Err error // why it stopped, nil after a clean stop
}

// Leadership tells whether this worker assigns the consumers.
type Leadership struct {
	ID     uuid.UUID
	Leader bool
}

// ConsumerInfo names a consumer.
type ConsumerInfo struct {
	Consumer string
	Reason   string // why it was paused, or is not run
}

// Batch describes a batch and how long its parts took.
type Batch struct {
	Consumer    string
	Attempt     int   // from 1
	Events      int   // that the handler is given
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

// Retry announces another try.
type Retry struct {
	Consumer  string
	InARow    int // failures so far
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

// Wakeup is a reason to look at once.
type Wakeup struct{ Source WakeupSource }

// WakeupSource is where a wakeup came from.
type WakeupSource string

const (
	WakeupEvents  WakeupSource = "events"  // a notification from the event store
	WakeupChanges WakeupSource = "changes" // workers, assignments or operators
)

// tell calls a hook if it is there.
func tell[T any](hook func(T), about T) {
	if hook != nil {
		hook(about)
	}
}

// skipped reports a committed batch's marks.
func (o Observer) skipped(consumer string, marks []mark) {
	if o.Skipped == nil {
		return
	}
	for _, m := range marks {
		o.Skipped(Skip{Range: m.Range, Consumer: consumer, Missing: m.Missing, State: m.State})
	}
}

// buried reports a committed batch's dead letters.
func (o Observer) buried(consumer string, letters []letter) {
	if o.DeadLettered == nil {
		return
	}
	for _, l := range letters {
		o.DeadLettered(DeadLetter{consumer, l.Type, l.ID, l.Position, l.EventID, l.EventType, l.Attempts, l.Error})
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
func (c *consumerLoop) describe(p page, a advance) *Batch {
	b := &Batch{Consumer: c.unit.name, Attempt: c.tallyOf(p.retried).attempt(), Events: len(p.Events), From: c.progress.position, To: a.to, Read: p.Took}
	if n := len(p.Events); n > 0 {
		b.First, b.Last = p.Events[0].GlobalPosition, p.Events[n-1].GlobalPosition
	}
	b.Late = countLate(p.Events, p.Look.Checkpoint)
	return b
}

// countLate counts the events behind the checkpoint, which come first.
func countLate(events []store.PersistedEvent, checkpoint int64) (n int) {
	for n < len(events) && events[n].GlobalPosition <= checkpoint {
		n++
	}
	return n
}

// Tee returns an Observer that passes everything on to all of several, in
// this order.
func Tee(all ...Observer) Observer {
	return Observer{
		WorkerStarted:     tee(all, func(o Observer) func(WorkerInfo) { return o.WorkerStarted }),
		WorkerStopped:     tee(all, func(o Observer) func(WorkerInfo) { return o.WorkerStopped }),
		LeadershipChanged: tee(all, func(o Observer) func(Leadership) { return o.LeadershipChanged }),
		ConsumerStarted:   tee(all, func(o Observer) func(ConsumerInfo) { return o.ConsumerStarted }),
		ConsumerStopped:   tee(all, func(o Observer) func(ConsumerInfo) { return o.ConsumerStopped }),
		ConsumerUnowned:   tee(all, func(o Observer) func(ConsumerInfo) { return o.ConsumerUnowned }),
		ConsumerPaused:    tee(all, func(o Observer) func(ConsumerInfo) { return o.ConsumerPaused }),
		BatchStarted:      tee(all, func(o Observer) func(Batch) { return o.BatchStarted }),
		BatchDone:         tee(all, func(o Observer) func(Batch) { return o.BatchDone }),
		HandlerOverdue:    tee(all, func(o Observer) func(Batch) { return o.HandlerOverdue }),
		Retrying:          tee(all, func(o Observer) func(Retry) { return o.Retrying }),
		DeadLettered:      tee(all, func(o Observer) func(DeadLetter) { return o.DeadLettered }),
		FrontierBlocked:   tee(all, func(o Observer) func(BlockingTransaction) { return o.FrontierBlocked }),
		FrontierFailed:    tee(all, func(o Observer) func(error) { return o.FrontierFailed }),
		Skipped:           tee(all, func(o Observer) func(Skip) { return o.Skipped }),
		NotifyFailed:      tee(all, func(o Observer) func(error) { return o.NotifyFailed }),
		Recovered:         tee(all, func(o Observer) func(Recovery) { return o.Recovered }),
		Woken:             tee(all, func(o Observer) func(Wakeup) { return o.Woken }),
	}
}

// tee returns a hook that calls those that are there, nil if none is.
func tee[T any](all []Observer, hook func(Observer) func(T)) func(T) {
	var there []func(T)
	for _, o := range all {
		if h := hook(o); h != nil {
			there = append(there, h)
		}
	}
	if len(there) == 0 {
		return nil
	}
	return func(about T) {
		for _, h := range there {
			h(about)
		}
	}
}
