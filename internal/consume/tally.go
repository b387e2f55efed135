package consume

import (
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/store"
)

// conflictsTolerated is how often in a row PostgreSQL may sacrifice one batch
// (deadlock, serialization failure) before that counts as its handler's.
const conflictsTolerated = 5

// lossesTolerated is how often in a row a batch may lose its connection at one
// event, while all others keep theirs, before that counts as its handler's.
const lossesTolerated = 1

// tally counts what went wrong since a consumer last got on, and decides what
// follows. It asks neither a clock nor the database. The zero value has seen
// nothing go wrong.
//
// The FailurePolicy never applies to a batch of several events of which nobody
// knows which one fails: it is narrowed down first, and what failed until then
// does not count for the event that is left. A target that is away for a moment
// fails all events alike.
type tally struct {
	retries  int           // of the batch in hand
	failures int           // the handler's, in a row
	poison   int64         // the event that is known to fail; 0: none, or a batch without events
	tries    int           // failures at poison
	bisect   bisection     // what a failed batch is narrowed down to
	owed     time.Duration // the pause before poison is tried again, see due

	conflicts int   // in a row
	lostAt    int64 // the event at which the connection was lost
	losses    int   // there, in a row

	disturbed int       // in a row, the database's
	troubled  time.Time // when the first of them came
}

// failure is what a tally has to know of a step that failed.
type failure struct {
	outcome outcome
	batch   bool                   // there was one
	events  []store.PersistedEvent // of the batch
	at      int                    // index of the event that was being handled, below 0: unknown
	well    bool                   // other connections outlived it
	many    bool                   // the batch had too many events for its time
	now     time.Time
	random  float64 // in [0, 1), spreads the pauses
}

// decision is what follows from a failure.
type decision struct {
	byHandler bool
	inARow    int // failures of this kind
	tries     int // of them, the handler's at the event that is known to fail; 0: none is
	pause     time.Duration
	// exhausted: the FailurePolicy applies or, if it is not the handler's
	// failure, RetryLimit has passed.
	exhausted bool
}

// failed takes note of a failure.
func (t *tally) failed(cfg *Config, f failure) decision {
	if f.batch {
		t.retries++
	}
	switch f.outcome {
	case conflicted:
		t.disturbed = 0 // the server has said so
		if t.conflicts++; t.conflicts <= conflictsTolerated {
			return decision{inARow: t.conflicts, pause: backoff.Delay(t.conflicts, 10*time.Millisecond, time.Second, f.random)}
		}
	case lost:
		if !t.lost(f) {
			return t.trouble(cfg, f)
		}
	case handlerFailed:
	default:
		return t.trouble(cfg, f)
	}
	return t.byHandler(cfg, f)
}

// lost takes note of a lost connection, and reports whether that counts as the
// handler's failure. What everybody loses never does. Once it counts it goes on
// counting, wherever the batch is cut while it is narrowed down.
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

// trouble takes note that the database did not work.
func (t *tally) trouble(cfg *Config, f failure) decision {
	if t.disturbed++; t.disturbed == 1 {
		t.troubled = f.now
	}
	return decision{
		inARow:    t.disturbed,
		pause:     backoff.Infrastructure(t.disturbed),
		exhausted: cfg.RetryLimit > 0 && f.now.Sub(t.troubled) > cfg.RetryLimit,
	}
}

// byHandler takes note that the handler failed. While a batch is narrowed down
// all pauses are like the first, and a known event is tried again after what
// comes before it, which need not wait.
func (t *tally) byHandler(cfg *Config, f failure) decision {
	t.disturbed, t.owed = 0, 0
	t.failures++
	if f.many { // the next batch has fewer
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
		v.pause, t.owed = 0, 0 // the policy waits for the event's failure alone, and nothing waits for the policy
	}
	return v
}

// worked takes note that a step got through to the database, also if there was
// nothing to do, and reports whether that ends a trouble.
func (t *tally) worked() (over bool) {
	over, t.disturbed = t.disturbed > 0, 0
	return over
}

// passed takes note that there is nothing left to do up to a position. Once no
// event is under suspicion, the failures are forgotten.
func (t *tally) passed(position int64) {
	if t.bisect = t.bisect.passed(position); !t.bisect.active() {
		t.reset()
	}
}

// clean reports whether nothing has gone wrong with a batch since one got through.
func (t *tally) clean() bool { return t.failures == 0 && t.conflicts == 0 && t.losses == 0 }

// reset forgets the failures. Whether the database works is another matter.
func (t *tally) reset() { *t = tally{disturbed: t.disturbed, troubled: t.troubled} }

// due returns the pause that comes before the next batch, once: that before an
// event is tried again, when what came before it is done.
func (t *tally) due() (pause time.Duration) {
	if t.bisect.bound == t.bisect.until {
		pause, t.owed = t.owed, 0
	}
	return pause
}

// attempt is the number of the next try of the batch in hand, from 1.
func (t *tally) attempt() int { return t.retries + 1 }
