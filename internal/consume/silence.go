package consume

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/consume/batch"
	"github.com/pgfrontier/worker/internal/consume/lockwatch"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/observe"
)

// sessionOf returns the pid of the server process behind conn, or 0 if it is unknown.
// lib/pq does not expose the pid, and proxies return one of their own.
func (w *Worker) sessionOf(conn *sql.Conn) int64 {
	if !w.pooling.PIDKnown {
		return 0
	}
	return pgdriver.PID(conn)
}

// reading runs a read of the loop with Worker.reading.
func (c *consumerLoop) reading(ctx context.Context, session func() int64, read func(ctx context.Context) error) error {
	return c.w.reading(ctx, session, read, c.unit.name)
}

// reading runs a read within limits.read. session returns the read's pid, or 0 while it is
// unknown. consumer is the reading consumer, or empty if several read.
func (w *Worker) reading(ctx context.Context, session func() int64, read func(ctx context.Context) error, consumer string) error {
	return w.bounded(ctx, w.limits.read, func(ctx context.Context) error {
		return w.sessions(consumer).Read(ctx, session, w.limits.quick, w.limits.read, read)
	})
}

// sessions reads what the server does for the connections of a consumer.
func (w *Worker) sessions(consumer string) lockwatch.Sessions {
	return lockwatch.Sessions{DB: w.db, Failed: func(ctx context.Context, task string, err error) { w.taskFailed(ctx, task, consumer, err) }}
}

// watchedRow returns a unit's row with what its watch needs.
func (w *Worker) watchedRow(u *unit) lockwatch.Row {
	about := u.about(observe.ConditionLock)
	r := lockwatch.Row{
		Sessions: w.sessions(u.name), Unit: u.name, Worker: w.id, Checkpoints: &w.checkpoints,
		Patience: w.limits.lock, Limit: w.guardLimit(), Found: w.sweepNow.Send,
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
func (w *Worker) guardLimit() time.Duration { return 2*w.cfg.BatchTimeout + w.limits.guard }

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
