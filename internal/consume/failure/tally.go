package failure

import (
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/store"
)

// conflictsTolerated is how often in a row PostgreSQL may abort one batch before the abort
// counts as its handler's failure. Such aborts are deadlocks and serialization failures.
const conflictsTolerated = 5

// lossesTolerated is how often in a row a batch may lose its connection at one event before
// the loss counts as its handler's failure. Only losses that other connections survive
// count.
const lossesTolerated = 1

// Tally counts the failures since the consumer last succeeded, and decides what follows. It
// uses neither a clock nor the database. The zero value has no failure.
//
// The FailurePolicy never applies to a batch of several events whose failing event is
// unknown. The batch is narrowed down first, and failures until then do not count for the
// event that is found. So an unavailable dependency, which fails all events alike, does not
// use up an event's attempts.
type Tally struct {
	Bisection Bisection // narrows down a failed batch
	Failures  int       // the handler's, in a row
	Disturbed int       // failures of the database in a row

	retries int           // of the batch in flight
	poison  int64         // the event that is known to fail; 0: none, or a batch without events
	tries   int           // failures at poison
	owed    time.Duration // the pause before poison is tried again, see Due

	conflicts int   // in a row
	lostAt    int64 // the event at which the connection was lost
	losses    int   // losses at lostAt, in a row

	disturbedSince time.Time // when the first failure of the database happened
}

// Limits are the options of a worker that decide what follows from a failure.
type Limits struct {
	Attempts   int           // failures of an event before the FailurePolicy applies
	Stop       bool          // the FailurePolicy is FailStop
	RetryLimit time.Duration // how long the database may fail; 0: without limit
	Pause      time.Duration // the first pause after a handler's failure
	MaxPause   time.Duration // the longest pause after a handler's failure
}

// Failure describes a failed iteration.
type Failure struct {
	Kind   Kind
	Batch  bool                   // there was a batch
	Events []store.PersistedEvent // of the batch
	At     int                    // index of the event that was being handled; below 0: unknown
	Well   bool                   // other connections survived the failure
	Many   bool                   // the batch had too many events for its time
	Now    time.Time
	Random float64 // in [0, 1), for the jitter of pauses
}

// Decision is what follows from a failure.
type Decision struct {
	ByHandler bool
	InARow    int // failures of this kind in a row
	Tries     int // the handler's failures at the event that is known to fail; 0: none is known
	Pause     time.Duration
	// Exhausted: the FailurePolicy applies or, if the handler did not fail, RetryLimit has
	// passed.
	Exhausted bool
}

// Failed records a failure and returns the decision.
func (t *Tally) Failed(l *Limits, f Failure) Decision {
	if f.Batch {
		t.retries++
	}
	switch f.Kind {
	case Conflict:
		t.Disturbed = 0 // the server has answered
		if t.conflicts++; t.conflicts <= conflictsTolerated {
			return Decision{InARow: t.conflicts, Pause: backoff.Delay(t.conflicts, 10*time.Millisecond, time.Second, f.Random)}
		}
	case Loss:
		if !t.lost(f) {
			return t.databaseFailed(l, f)
		}
	case Handler:
	default:
		return t.databaseFailed(l, f)
	}
	return t.byHandler(l, f)
}

// lost records a lost connection, and reports whether the loss counts as the handler's
// failure. A loss of all connections never counts. Once a loss counts, later losses of the
// batch count too, wherever the batch is cut while it is narrowed down.
func (t *Tally) lost(f Failure) bool {
	if !f.Well {
		return false
	}
	at := int64(0)
	if len(f.Events) > 0 {
		at = f.Events[max(f.At, 0)].GlobalPosition
	}
	if at != t.lostAt && t.losses <= lossesTolerated {
		t.lostAt, t.losses = at, 0
	}
	t.losses++
	return t.losses > lossesTolerated
}

// databaseFailed records that the database failed.
func (t *Tally) databaseFailed(l *Limits, f Failure) Decision {
	if t.Disturbed++; t.Disturbed == 1 {
		t.disturbedSince = f.Now
	}
	return Decision{
		InARow:    t.Disturbed,
		Pause:     backoff.Infrastructure(t.Disturbed),
		Exhausted: l.RetryLimit > 0 && f.Now.Sub(t.disturbedSince) > l.RetryLimit,
	}
}

// byHandler records that the handler failed. While a batch is narrowed down, each pause is
// as long as the first. A known failing event is tried again after the events before it,
// which do not wait for its pause.
func (t *Tally) byHandler(l *Limits, f Failure) Decision {
	t.Disturbed, t.owed = 0, 0
	t.Failures++
	if f.Many { // the next batch has fewer events
		return Decision{ByHandler: true, InARow: t.Failures, Pause: backoff.Delay(1, l.Pause, l.MaxPause, f.Random)}
	}
	t.Bisection = t.Bisection.Failed(f.Events, f.At)
	v := Decision{ByHandler: true, InARow: t.Failures}
	alone := len(f.Events) <= 1
	if !alone && f.At < 0 {
		v.Pause = backoff.Delay(1, l.Pause, l.MaxPause, f.Random)
		return v
	}
	poison := int64(0)
	if len(f.Events) > 0 {
		poison = f.Events[max(f.At, 0)].GlobalPosition
	}
	if poison != t.poison {
		t.poison, t.tries = poison, 0
	}
	t.tries++
	v.Tries = t.tries
	v.Exhausted = t.tries >= l.Attempts && (alone || l.Stop)
	v.Pause = backoff.Delay(t.tries, l.Pause, l.MaxPause, f.Random)
	if f.At > 0 {
		v.Pause, t.owed = 0, v.Pause
	}
	if !v.Exhausted && t.tries >= l.Attempts {
		v.Pause, t.owed = 0, 0 // the event is tried alone next, without a pause: if it fails, the policy applies
	}
	return v
}

// Worked records that an iteration reached the database, even without work. It reports
// whether that ends a failure of the database.
func (t *Tally) Worked() (over bool) {
	over, t.Disturbed = t.Disturbed > 0, 0
	return over
}

// Passed records that everything up to position is done. Once no event is suspected, the
// failures are cleared.
func (t *Tally) Passed(position int64) {
	if t.Bisection = t.Bisection.Passed(position); !t.Bisection.Active() {
		t.Reset()
	}
}

// Clean reports whether no batch has failed since the last success.
func (t *Tally) Clean() bool { return t.Failures == 0 && t.conflicts == 0 && t.losses == 0 }

// Reset clears the failures of batches. The failures of the database remain.
func (t *Tally) Reset() { *t = Tally{Disturbed: t.Disturbed, disturbedSince: t.disturbedSince} }

// Due returns, once, the pause before the next batch. It is the pause before a failing
// event's next try, after the events before it are done.
func (t *Tally) Due() (pause time.Duration) {
	if t.Bisection.Bound == t.Bisection.Until {
		pause, t.owed = t.owed, 0
	}
	return pause
}

// Attempt returns the number of the next try of the batch in flight, from 1.
func (t *Tally) Attempt() int { return t.retries + 1 }
