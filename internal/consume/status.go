package consume

import (
	"cmp"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

// unitStatus is the state of a loop that other goroutines read.
type unitStatus struct {
	mu           sync.Mutex
	s            observe.ConsumerStatus
	known        bool  // Position is of this run
	deferredTo   int64 // the end of a part's deferred move, above Position
	oldest       *oldest
	began        time.Time // when the run began
	movedAt      time.Time // when Position last changed
	waitingSince time.Time // when a poll since then first found an event above Position; zero: none found one
	ongoing      error     // the error that holds up the batch in flight; nil: none
	ongoingAt    int64     // the event of ongoing; 0: unknown
}

// at returns the consumer's position in this worker, or -1 if it has not run here.
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

// snapshot returns the consumer's status. safe and head are the log's positions, or nil if
// unknown.
func (u *unitStatus) snapshot(safe, head *int64) observe.ConsumerStatus {
	u.mu.Lock()
	defer u.mu.Unlock()
	s, now := u.s, time.Now()
	if u.ongoing != nil {
		s.LastError, s.Stuck = u.ongoing, cmp.Or(u.ongoingAt, s.Stuck)
	}
	if s.Assigned && u.known {
		at := u.passedTo()
		s.Lag, s.HeadLag = behind(safe, at), behind(head, at)
		s.OldestAge = u.oldest.age(at, head, now)
		s.Still = min(now.Sub(u.movedAt), u.waited(s.OldestAge, head, now))
	} else if s.Assigned {
		s.Still = now.Sub(u.began)
	}
	return s
}

// waited returns how long an event has been waiting at least. The event's age alone is not
// reliable: a writer may give an event any time, even a future one.
func (u *unitStatus) waited(age *time.Duration, head *int64, now time.Time) (d time.Duration) {
	if age != nil {
		d = *age
	}
	if !u.waitingSince.IsZero() && (head == nil || u.passedTo() < *head) {
		d = max(d, now.Sub(u.waitingSince))
	}
	return d
}

// behind returns how far a position is below upTo.
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

// begin records that a loop begins. Other workers have moved the consumer since this
// worker's last loop ended.
func (u *unitStatus) begin() {
	u.change(func(s *observe.ConsumerStatus) {
		u.known, u.deferredTo, u.oldest, u.began, u.waitingSince, s.Paused = false, 0, nil, time.Now(), time.Time{}, nil
	})
}

// loaded records the loaded progress. It clears the error of an event that an operator has
// skipped.
func (u *unitStatus) loaded(p *progress.State) {
	u.change(func(s *observe.ConsumerStatus) {
		if s.Position < s.Stuck && p.Position >= s.Stuck { // the event at Stuck is handled; a late one is below both positions
			s.LastError, s.Failures, s.Stuck = nil, 0, 0
		}
		u.moveTo(p.Position)
		u.deferredTo = 0
		s.Paused, s.DeadLetters, s.OpenRanges, u.known = (*observe.Pause)(p.Paused), p.DeadLetters, len(p.Open), true
	})
}

func (u *unitStatus) moveTo(position int64) {
	if u.movedAt.IsZero() || position != u.s.Position {
		u.s.Position, u.movedAt, u.waitingSince = position, time.Now(), time.Time{}
	}
}

// passed records the end of a part's deferred move.
func (u *unitStatus) passed(upTo int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.deferredTo, u.movedAt, u.waitingSince = upTo, time.Now(), time.Time{}
}

// passedTo returns the position up to which no event waits for the consumer.
func (u *unitStatus) passedTo() int64 { return max(u.s.Position, u.deferredTo) }

// advanced records a committed batch. The failures remain while a failing event is narrowed
// down.
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

// setOngoing shows an error until the next call with nil. at is the event that the error
// concerns, or 0.
func (u *unitStatus) setOngoing(err error, at int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ongoing, u.ongoingAt = err, at
}

// recovered records that a failure of the database is over.
func (u *unitStatus) recovered() {
	u.change(func(s *observe.ConsumerStatus) {
		if s.Failures == 0 {
			s.LastError = nil
		}
	})
}

func (u *unitStatus) setError(err error) {
	u.change(func(s *observe.ConsumerStatus) { s.LastError = err })
}

// oldest is the oldest event above a consumer's position, as read at a time.
type oldest struct {
	store.Waiting
	at time.Time
}

// age returns the age of the first event above a position, or nil if the age is unknown. If
// the consumer has since handled the event that was read, age returns the age at the read.
// No later age is known then.
func (o *oldest) age(position int64, head *int64, now time.Time) *time.Duration {
	var age time.Duration
	switch {
	case head != nil && position >= *head:
	case o == nil:
		return nil
	case o.Position > position:
		age = o.Age + now.Sub(o.at)
	default:
		age = o.Age
	}
	return &age
}

// behindAt returns the position up to which an assigned consumer has passed the log. It
// reports whether that position is known and below the head.
func (u *unitStatus) behindAt(head int64) (position int64, behind bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	position = u.passedTo()
	return position, u.s.Assigned && u.known && position < head
}

// caughtUp records that no event waits, unless a later read has found one. Without caughtUp, the
// age of an event that was handled long ago would count as soon as the head moves on.
func (u *unitStatus) caughtUp() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.known && (u.oldest == nil || u.oldest.Position <= u.passedTo()) {
		u.oldest = &oldest{at: time.Now()}
	}
}

// recordOldest records the oldest waiting event, unless another run of the consumer has
// begun.
func (u *unitStatus) recordOldest(o oldest) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.known {
		return
	}
	u.oldest = &o
	switch {
	case o.Position <= u.passedTo(): // no event waits, or no event waits any more
		u.waitingSince = time.Time{}
	case u.waitingSince.IsZero():
		u.waitingSince = o.at
	}
}
