package consume

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/consume/batch"
	"github.com/pgfrontier/worker/internal/consume/lockwatch"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/observe"
)

// reading runs a read of the loop with Worker.reading.
func (c *consumerLoop) reading(ctx context.Context, session func() int64, read func(ctx context.Context) error) error {
	return c.w.reading(ctx, session, read, c.unit.name)
}

// row returns the unit's row with what its watch needs.
func (u *unit) row(w *Worker) lockwatch.Row {
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

// watchGuard watches a guard on conn, see [lockwatch.Guards.Watch].
func (c *consumerLoop) watchGuard(ctx context.Context, giveUp context.CancelCauseFunc, conn *sql.Conn) (end func(err error)) {
	return c.guards.Watch(ctx, giveUp, c.w.sessionOf(conn))
}

// watchHandler reports, once, that the handler of a batch still runs after ctx has ended.
// The caller calls returned when the handler returns.
func (c *consumerLoop) watchHandler(ctx context.Context, t *batch.Tx, b observe.Batch) (returned func()) {
	return lockwatch.Overdue(ctx, func() (over func()) {
		err := fmt.Errorf("%w%s (%w)", ErrHandlerOverdue, where(t), context.Cause(ctx))
		c.status.setOngoing(err, t.InFlight())
		c.w.observers.Begin(c.about(observe.ConditionOverdue), err)
		b.Err = err
		c.w.observers.Notify(observe.HandlerOverdue{Batch: b})
		return func() {
			c.status.setOngoing(nil, 0)
			c.w.observers.End(c.about(observe.ConditionOverdue))
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
