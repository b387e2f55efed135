package consume

import (
	"cmp"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/observe"
)

// unitStatus is what a loop lets others see.
type unitStatus struct {
	mu      sync.Mutex
	s       observe.ConsumerStatus
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

func (u *unitStatus) change(f func(*observe.ConsumerStatus)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	f(&u.s)
}

// snapshot shows the consumer. safe and head are how far the log is, nil if
// that is not known.
func (u *unitStatus) snapshot(safe, head *int64) observe.ConsumerStatus {
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

func (u *unitStatus) assigned(yes bool) {
	u.change(func(s *observe.ConsumerStatus) { s.Assigned = yes })
}

// begin takes note that a loop begins: other workers have moved the consumer
// since the last one ended.
func (u *unitStatus) begin() {
	u.change(func(s *observe.ConsumerStatus) {
		u.known, u.kept, u.oldest, u.began, u.waits, s.Paused = false, 0, nil, time.Now(), time.Time{}, nil
	})
}

// loaded records the progress. The error of an event that an operator has skipped is over.
func (u *unitStatus) loaded(p *progress.State) {
	u.change(func(s *observe.ConsumerStatus) {
		if s.Position < s.Stuck && p.Position >= s.Stuck { // a late event is below both
			s.LastError, s.Failures, s.Stuck = nil, 0, 0
		}
		u.moveTo(p.Position)
		u.kept = 0
		s.Paused, s.DeadLetters, s.OpenRanges, u.known = (*observe.Pause)(p.Paused), p.DeadLetters, len(p.Open), true
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
	u.change(func(s *observe.ConsumerStatus) {
		u.moveTo(position)
		if s.Failures = failures; failures == 0 {
			s.LastError, s.Stuck = nil, 0
		}
		s.Handled += int64(events)
	})
}

func (u *unitStatus) failed(err *observe.ConsumerError, failures int) {
	u.change(func(s *observe.ConsumerStatus) { s.LastError, s.Failures, s.Stuck = err, failures, err.Position })
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
	u.change(func(s *observe.ConsumerStatus) {
		if s.Failures == 0 {
			s.LastError = nil
		}
	})
}

func (u *unitStatus) disturbed(err error) {
	u.change(func(s *observe.ConsumerStatus) { s.LastError = err })
}

// Status returns a snapshot of the worker.
func (w *Worker) Status() observe.Status {
	s := observe.Status{State: w.state.Load().(observe.State)}
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

// heartbeatStatus is what a heartbeat leaves in the table of workers: the
// Status without the consumers that are others' affair.
func (w *Worker) heartbeatStatus() ([]byte, error) {
	s := w.Status()
	s.Consumers = slices.DeleteFunc(s.Consumers, func(c observe.ConsumerStatus) bool { return !c.Assigned })
	status, err := json.Marshal(s)
	if w.ascii {
		status = []byte(errtext.ASCIIOfJSON(string(status)))
	}
	return status, err
}
