package worker

import (
	"cmp"
	"sync"
	"time"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/observe"
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

// BlockingTransaction is an open transaction that has drawn positions.
type BlockingTransaction = observe.BlockingTransaction

// SetupError tells what was altered in the database that the frontier's proof
// rests on, and the remedy. It wraps one of the errors of package frontier.
type SetupError = frontier.SetupError

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
	// database's clock, as of the latest look: [Worker.Ready] looks, and the worker
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

// unitStatus is what a loop lets others see.
type unitStatus struct {
	mu      sync.Mutex
	s       ConsumerStatus
	known   bool  // Position is this run's
	kept    int64 // up to where a part has passed others' events beyond Position
	oldest  *oldest
	began   time.Time // the run
	moved   time.Time // when Position was last another one
	waits   time.Time // the first look since that found an event above Position; zero: none has
	lasting error     // what holds the batch in hand up; nil: nothing
	held    int64     // the event of that; 0: none that is known
}

// at returns how far the consumer has been in this worker, -1 if it has not run
// here.
func (u *unitStatus) at() int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.known {
		return -1
	}
	return u.s.Position
}

func (u *unitStatus) isAssigned() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.s.Assigned
}

func (u *unitStatus) change(f func(*ConsumerStatus)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	f(&u.s)
}

// snapshot shows the consumer. safe and head are how far the log is, nil if
// that is not known.
func (u *unitStatus) snapshot(safe, head *int64) ConsumerStatus {
	u.mu.Lock()
	defer u.mu.Unlock()
	s, now := u.s, time.Now()
	if u.lasting != nil {
		s.LastError, s.Stuck = u.lasting, cmp.Or(u.held, s.Stuck)
	}
	if s.Assigned && u.known {
		at := u.passedTo()
		s.Lag, s.HeadLag = behind(safe, at), behind(head, at)
		s.OldestAge = u.oldest.age(at, head, now)
		s.Still = min(now.Sub(u.moved), u.waited(s.OldestAge, head, now))
	} else if s.Assigned {
		s.Still = now.Sub(u.began)
	}
	return s
}

// waited returns for how long an event has been waiting at least. Its age alone would not
// do: a writer may give an event any time, also one that is to come.
func (u *unitStatus) waited(age *time.Duration, head *int64, now time.Time) (d time.Duration) {
	if age != nil {
		d = *age
	}
	if !u.waits.IsZero() && (head == nil || u.passedTo() < *head) {
		d = max(d, now.Sub(u.waits))
	}
	return d
}

// behind counts the positions above one, up to another.
func behind(upTo *int64, position int64) *int64 {
	if upTo == nil {
		return nil
	}
	lag := max(*upTo-position, 0)
	return &lag
}

func (u *unitStatus) assigned(yes bool) { u.change(func(s *ConsumerStatus) { s.Assigned = yes }) }

// begin takes note that a loop begins: other workers have moved the consumer
// since the last one ended.
func (u *unitStatus) begin() {
	u.change(func(s *ConsumerStatus) {
		u.known, u.kept, u.oldest, u.began, u.waits, s.Paused = false, 0, nil, time.Now(), time.Time{}, nil
	})
}

// loaded records the progress. The error of an event that an operator has skipped is over.
func (u *unitStatus) loaded(p *progress.State) {
	u.change(func(s *ConsumerStatus) {
		if s.Position < s.Stuck && p.Position >= s.Stuck { // a late event is below both
			s.LastError, s.Failures, s.Stuck = nil, 0, 0
		}
		u.moveTo(p.Position)
		u.kept = 0
		s.Paused, s.DeadLetters, s.OpenRanges, u.known = (*Pause)(p.Paused), p.DeadLetters, len(p.Open), true
	})
}

func (u *unitStatus) moveTo(position int64) {
	if u.moved.IsZero() || position != u.s.Position {
		u.s.Position, u.moved, u.waits = position, time.Now(), time.Time{}
	}
}

// passed records that a part has passed events of other parts up to a position, and not
// committed that.
func (u *unitStatus) passed(upTo int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.kept, u.moved, u.waits = upTo, time.Now(), time.Time{}
}

// passedTo returns up to where nothing waits for the consumer.
func (u *unitStatus) passedTo() int64 { return max(u.s.Position, u.kept) }

// advanced takes note of a committed batch. While a failing event is narrowed
// down, the failures still stand.
func (u *unitStatus) advanced(position int64, events, failures int) {
	u.change(func(s *ConsumerStatus) {
		u.moveTo(position)
		if s.Failures = failures; failures == 0 {
			s.LastError, s.Stuck = nil, 0
		}
		s.Handled += int64(events)
	})
}

func (u *unitStatus) failed(err *ConsumerError, failures int) {
	u.change(func(s *ConsumerStatus) { s.LastError, s.Failures, s.Stuck = err, failures, err.Position })
}

// lasts shows an error until it is called with nil. held is the event that it is about, 0 if it
// is about none.
func (u *unitStatus) lasts(err error, held int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.lasting, u.held = err, held
}

// recovered takes note that trouble with the database is over.
func (u *unitStatus) recovered() {
	u.change(func(s *ConsumerStatus) {
		if s.Failures == 0 {
			s.LastError = nil
		}
	})
}

func (u *unitStatus) disturbed(err error) { u.change(func(s *ConsumerStatus) { s.LastError = err }) }

// Status returns a snapshot of the worker. It may be called at any time.
func (w *Worker) Status() Status {
	s := Status{State: w.state.Load().(State)}
	if !w.isReady() {
		return s
	}
	c := w.coord.Status()
	s.Leader, s.LastHeartbeat, s.CoordinationError, s.Unowned = c.Leader, c.LastHeartbeat, errtext.Of(explain(c.LastError)), c.Unowned
	s.NotifyError = w.listener.err()
	s.FrontierError = errtext.Of(explain(w.frontier.Err()))
	s.Blocked = w.frontier.Blocked()
	v := w.frontier.Value()
	s.Settled, s.MaxOpenRanges = v.Settled, w.cfg.MaxOpenRanges
	var safe, head *int64
	if s.Safe = v.Safe; v.Token != "" {
		safe = &s.Safe
	}
	var seen bool
	s.LoopError = w.hanging(c.LastTurn)
	if s.Head, seen = w.frontier.Head(); seen && s.FrontierError == nil && s.LoopError == nil {
		head = &s.Head
	}
	s.Head = max(s.Head, s.Safe, w.ages.headOf(v.Token))
	s.SafeStill = w.ages.still(v.Token, s.Safe, s.Head, time.Now())
	for _, whole := range w.units {
		units := w.partsOf(whole.declared)
		if len(units) == 0 {
			units = []*unit{whole}
		}
		for _, u := range units {
			s.Consumers = append(s.Consumers, u.status.snapshot(safe, head))
		}
	}
	return s
}
