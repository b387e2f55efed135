package consume

import (
	"context"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/consume/batch"
	"github.com/pgfrontier/worker/internal/consume/lockwatch"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/observe"
)

// row returns the unit's row with what its watch needs.
func (u *unit) row(w *shared) lockwatch.Row {
	about := u.about(observe.ConditionLock)
	r := lockwatch.Row{
		Sessions: w.sessions(u.name), Unit: u.name, Worker: w.id, Checkpoints: &w.checkpoints,
		Patience: w.limits.lock, Limit: guardLimit(w.cfg.BatchTimeout, &w.limits), Found: w.sweepNow.Send,
		Waits: func(err error, notify bool) {
			u.status.setOngoing(err, 0)
			w.observers.Begin(about, err)
			if notify {
				w.observers.Notify(observe.ConsumerWaiting{Consumer: u.name, Condition: observe.ConditionLock, Err: err})
			}
		},
		Over: func() {
			u.status.setOngoing(nil, 0)
			w.observers.End(about)
		},
		Ended: func(z progress.OpenBatch) {
			w.observers.Notify(observe.DeadBatchEnded{Consumer: u.name, DeadWorker: z.Worker, PID: z.Session})
		},
	}
	if w.cfg.LeaderStrategy == LeaderStrategyAdvisory {
		r.Dead = w.isDead
	}
	return r
}

// guardLimit is the time limit of a guard while its blocker is unknown. It is longer than
// another worker's batch.
func guardLimit(batch time.Duration, l *limits) time.Duration { return 2*batch + l.guard }

// watchHandler reports, once, that the handler of a batch still runs after ctx has ended.
// The caller calls returned when the handler returns.
func (u *unit) watchHandler(ctx context.Context, observers *runtime.Observers, t *batch.Tx, b observe.Batch) (returned func()) {
	about := u.about(observe.ConditionOverdue)
	return lockwatch.Overdue(ctx, func() (over func()) {
		err := fmt.Errorf("%w%s (%w)", ErrHandlerOverdue, where(t), context.Cause(ctx))
		u.status.setOngoing(err, t.InFlight())
		observers.Begin(about, err)
		b.Err = err
		observers.Notify(observe.HandlerOverdue{Batch: b})
		return func() {
			u.status.setOngoing(nil, 0)
			observers.End(about)
		}
	})
}

// where names the event of the handler's running call, as part of an error.
func where(t *batch.Tx) string {
	if first := t.InFlight(); first > 0 {
		return fmt.Sprintf("; it was given the event at position %d", first)
	}
	return "" // the batch's middleware or the commit is running
}
