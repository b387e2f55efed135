package consume

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/wakeup"
	"github.com/pgfrontier/worker/internal/watchdog"
	"github.com/pgfrontier/worker/store"
)

// progressWatch finds moves of idle consumers by other workers and operators.
type progressWatch struct {
	*env
	now        *wakeup.Signal                  // wakes run
	began      watchdog.Moment                 // when the last iteration of run began
	poll, most time.Duration                   // the shortest and the longest pause between two checks
	ages       func(ctx context.Context) error // reads the ages of waiting events
}

// run checks, for all consumers of the worker in one statement, whether another worker or
// an operator has moved an idle consumer's progress. An operator's reset is an example.
// Then it reads the ages of waiting events. It checks at once after a signal of now. Otherwise
// the pauses grow from poll to most. A move resets them.
func (w *progressWatch) run(ctx context.Context) {
	for quiet := 1; ; quiet++ {
		w.began.Set(time.Now())
		if _, ok := w.now.Sleep(ctx, backoff.Delay(quiet, w.poll, w.most, rand.Float64())); !ok {
			return
		}
		var busy []string
		units := w.allUnits()
		for _, u := range units {
			switch {
			case u.reload.revision.Load() != noRevision:
				busy = append(busy, u.name)
			case u.status.isAssigned():
				u.reload.signal() // its loop may be loading a state from before the change
			}
		}
		if len(busy) == 0 {
			continue
		}
		found, err := w.signalMoved(ctx, units, busy)
		if err == nil {
			err = w.ages(ctx)
		}
		w.taskFailed(ctx, taskWatch, "", err)
		if found {
			quiet = 0
		}
	}
}

func (w *progressWatch) signalMoved(ctx context.Context, units []*unit, names []string) (found bool, err error) {
	before := make(map[string]int64, len(units))
	for _, u := range units {
		before[u.name] = u.reload.revision.Load()
	}
	var revisions map[string]int64
	err = w.bounded(ctx, w.limits.quick, into(&revisions, func(ctx context.Context) (map[string]int64, error) { return w.checkpoints.Revisions(ctx, w.db, names) }))
	if err != nil {
		return false, err
	}
	for _, u := range units {
		if now, ok := revisions[u.name]; ok && movedByOthers(before[u.name], u.reload.revision.Load(), now) {
			found = true
			u.reload.signal()
		}
	}
	return found, nil
}

// movedByOthers reports whether another worker or an operator has moved a consumer whose
// revision is now. before is the loop's revision before the read, and known is its current
// one.
func movedByOthers(before, known, now int64) bool {
	switch {
	case known == noRevision || now == known:
		return false
	case known == before:
		return true // also after a lower revision: a backup was restored
	}
	// The loop has moved or loaded the consumer meanwhile. The read may be older than that.
	return now > known
}

// confirmFailover is the pause before the second read of a server that seems to be another
// one. After a crash the frontier may not have noticed the new incarnation yet.
const confirmFailover = 250 * time.Millisecond

// watchServer detects that new connections lead to another server than the frontier's
// session. An abandoned primary keeps answering that session, so the worker would see
// neither new events nor an error. The pool is right: it follows the connection string.
func watchServer(ctx context.Context, e *env, every time.Duration) {
	for mismatches := 0; ; {
		pause := every
		if mismatches > 0 {
			pause = min(pause, confirmFailover)
		}
		if !backoff.Sleep(ctx, pause) {
			return
		}
		if !poolFailedOver(ctx, e) {
			mismatches = 0
			continue
		}
		e.frontier.Wake()
		if mismatches++; mismatches > 1 {
			e.frontier.Reopen()
		}
	}
}

// isOtherIncarnation reports whether an incarnation is another one than the frontier's. It
// returns false while the frontier knows none.
func (e *env) isOtherIncarnation(incarnation string) bool {
	known := e.frontier.Value().Token
	return known != "" && e.frontier.Err() == nil && incarnation != known
}

// poolFailedOver reports whether a connection of the pool leads to another incarnation than
// the frontier's. It closes that connection: if the frontier is right, no other loop should
// use it.
func poolFailedOver(ctx context.Context, e *env) (failedOver bool) {
	conn := &pooled{of: &e.connections}
	ctx, cancel := context.WithTimeout(ctx, e.limits.quick)
	defer cancel()
	incarnation, err := e.checkpoints.Incarnation(ctx, conn)
	if failedOver = err == nil && e.isOtherIncarnation(incarnation); failedOver {
		err = store.ErrIncarnation
	}
	conn.giveBack(err)
	return failedOver
}
