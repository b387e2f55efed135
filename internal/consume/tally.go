package consume

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

// tally counts the failures since the consumer last succeeded, and decides what follows. It
// uses neither a clock nor the database. The zero value has no failure.
//
// The FailurePolicy never applies to a batch of several events whose failing event is
// unknown. The batch is narrowed down first, and failures until then do not count for the
// event that is found. So an unavailable dependency, which fails all events alike, does not
// use up an event's attempts.
type tally struct {
	retries  int           // of the batch in flight
	failures int           // the handler's, in a row
	poison   int64         // the event that is known to fail; 0: none, or a batch without events
	tries    int           // failures at poison
	bisect   bisection     // narrows down a failed batch
	owed     time.Duration // the pause before poison is tried again, see due

	conflicts int   // in a row
	lostAt    int64 // the event at which the connection was lost
	losses    int   // losses at lostAt, in a row

	disturbed      int       // failures of the database in a row
	disturbedSince time.Time // when the first of them happened
}

// failure describes a failed iteration.
type failure struct {
	outcome outcome
	batch   bool                   // there was a batch
	events  []store.PersistedEvent // of the batch
	at      int                    // index of the event that was being handled; below 0: unknown
	well    bool                   // other connections survived the failure
	many    bool                   // the batch had too many events for its time
	now     time.Time
	random  float64 // in [0, 1), for the jitter of pauses
}

// decision is what follows from a failure.
type decision struct {
	byHandler bool
	inARow    int // failures of this kind in a row
	tries     int // the handler's failures at the event that is known to fail; 0: none is known
	pause     time.Duration
	// exhausted: the FailurePolicy applies or, if the handler did not fail, RetryLimit has
	// passed.
	exhausted bool
}

// failed records a failure and returns the decision.
func (t *tally) failed(cfg *Config, f failure) decision {
	if f.batch {
		t.retries++
	}
	switch f.outcome {
	case conflicted:
		t.disturbed = 0 // the server has answered
		if t.conflicts++; t.conflicts <= conflictsTolerated {
			return decision{inARow: t.conflicts, pause: backoff.Delay(t.conflicts, 10*time.Millisecond, time.Second, f.random)}
		}
	case lost:
		if !t.lost(f) {
			return t.databaseFailed(cfg, f)
		}
	case handlerFailed:
	default:
		return t.databaseFailed(cfg, f)
	}
	return t.byHandler(cfg, f)
}

// lost records a lost connection, and reports whether the loss counts as the handler's
// failure. A loss of all connections never counts. Once a loss counts, later losses of the
// batch count too, wherever the batch is cut while it is narrowed down.
func (t *tally) lost(f failure) bool {
	if !f.well {
		return false
	}
	at := int64(0)
	if len(f.events) > 0 {
		at = f.events[max(f.at, 0)].GlobalPosition
	}
	if at != t.lostAt && t.losses <= lossesTolerated {
		t.lostAt, t.losses = at, 0
	}
	t.losses++
	return t.losses > lossesTolerated
}

// databaseFailed records that the database failed.
func (t *tally) databaseFailed(cfg *Config, f failure) decision {
	if t.disturbed++; t.disturbed == 1 {
		t.disturbedSince = f.now
	}
	return decision{
		inARow:    t.disturbed,
		pause:     backoff.Infrastructure(t.disturbed),
		exhausted: cfg.RetryLimit > 0 && f.now.Sub(t.disturbedSince) > cfg.RetryLimit,
	}
}

// byHandler records that the handler failed. While a batch is narrowed down, each pause is
// as long as the first. A known failing event is tried again after the events before it,
// which do not wait for its pause.
func (t *tally) byHandler(cfg *Config, f failure) decision {
	t.disturbed, t.owed = 0, 0
	t.failures++
	if f.many { // the next batch has fewer events
		return decision{byHandler: true, inARow: t.failures, pause: backoff.Delay(1, cfg.PollInterval, cfg.MaxPollInterval, f.random)}
	}
	t.bisect = t.bisect.failed(f.events, f.at)
	v := decision{byHandler: true, inARow: t.failures}
	alone := len(f.events) <= 1
	if !alone && f.at < 0 {
		v.pause = backoff.Delay(1, cfg.PollInterval, cfg.MaxPollInterval, f.random)
		return v
	}
	poison := int64(0)
	if len(f.events) > 0 {
		poison = f.events[max(f.at, 0)].GlobalPosition
	}
	if poison != t.poison {
		t.poison, t.tries = poison, 0
	}
	t.tries++
	v.tries = t.tries
	v.exhausted = t.tries >= cfg.MaxConsecutiveFailures && (alone || cfg.FailurePolicy == FailStop)
	v.pause = backoff.Delay(t.tries, cfg.PollInterval, cfg.MaxPollInterval, f.random)
	if f.at > 0 {
		v.pause, t.owed = 0, v.pause
	}
	if !v.exhausted && t.tries >= cfg.MaxConsecutiveFailures {
		v.pause, t.owed = 0, 0 // the event is tried alone next, without a pause: if it fails, the policy applies
	}
	return v
}

// worked records that an iteration reached the database, even without work. It reports
// whether that ends a failure of the database.
func (t *tally) worked() (over bool) {
	over, t.disturbed = t.disturbed > 0, 0
	return over
}

// passed records that everything up to position is done. Once no event is suspected, the
// failures are cleared.
func (t *tally) passed(position int64) {
	if t.bisect = t.bisect.passed(position); !t.bisect.active() {
		t.reset()
	}
}

// clean reports whether no batch has failed since the last success.
func (t *tally) clean() bool { return t.failures == 0 && t.conflicts == 0 && t.losses == 0 }

// reset clears the failures of batches. The failures of the database remain.
func (t *tally) reset() { *t = tally{disturbed: t.disturbed, disturbedSince: t.disturbedSince} }

// due returns, once, the pause before the next batch. It is the pause before a failing
// event's next try, after the events before it are done.
func (t *tally) due() (pause time.Duration) {
	if t.bisect.bound == t.bisect.until {
		pause, t.owed = t.owed, 0
	}
	return pause
}

// attempt returns the number of the next try of the batch in flight, from 1.
func (t *tally) attempt() int { return t.retries + 1 }
