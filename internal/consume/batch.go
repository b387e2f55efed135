package consume

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/consume/batch"
	"github.com/pgfrontier/worker/internal/consume/lockwatch"
	"github.com/pgfrontier/worker/internal/consume/txcheck"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store/consumer"
)

// runBatch runs work in one transaction: the guard, the handlers, the commit. The end of
// intake stops the batch until the guard has returned. Afterwards only ctx and BatchTimeout
// end the batch.
func (c *consumerLoop) runBatch(ctx, intake context.Context, conn *heldConn, w *work) (r result) {
	defer func() { r.work = w }()
	b := c.describe(w)
	c.w.observers.Notify(observe.BatchStarted{Batch: *b})
	defer func() { c.w.batchDone(b, r) }()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	began := time.Now()
	tx, err := begin(ctx, cancel, intake, conn.Conn, c.quickLimit())
	if err != nil {
		return result{outcome: disturbed, err: fmt.Errorf("worker: begin a batch: %w", err)}
	}
	defer rollback(tx, cancel, c.w.limits.quick)

	moved, owned, err := c.guard(ctx, intake, conn.Conn, tx, w)
	b.Guard = time.Since(began)
	switch {
	case pgdriver.IsTimeLimit(err):
		return result{outcome: disturbed, waited: true, err: fmt.Errorf("worker: guard of a batch: a time limit of the role, such as statement_timeout, ended the wait for the consumer's row, which another batch holds: raise the limit: %w", err)}
	case err != nil:
		return result{outcome: disturbed, err: fmt.Errorf("worker: guard of a batch: %w", err)}
	case !owned:
		return result{outcome: overtaken, err: c.whyRefused(ctx, tx, w)}
	}

	// The wait for the guard is not the handler's fault: BatchTimeout starts after it.
	deadline := time.AfterFunc(c.w.cfg.BatchTimeout, func() { cancel(c.handler.TimedOut(conn.Conn)) })
	defer deadline.Stop()
	t := batch.NewTx(ctx, tx, conn.Conn, moved.Author)
	defer c.unit.watchHandler(ctx, c.w.observers, t, *b)()
	last := &txcheck.Batch{Work: w.checked(c.reader), After: moved.Version, Transaction: moved.Transaction}
	c.check.Last = last
	calls := c.callsOf(w, t, moved, b)
	calls.Lend = conn.lend
	var got batch.Result
	if middleware := c.w.cfg.BatchMiddleware; middleware != nil {
		got = calls.RunWithin(ctx, middleware, *b)
	} else {
		got = calls.Run(ctx, ctx)
	}
	r = result{outcome: outcomeOf(got.Kind), err: got.Err, at: got.At, many: got.Many}
	if b.Handle, b.Commit, c.pace = got.Handle, got.Commit, got.Pace; r.outcome == committed {
		r.moved = moved
	}
	last.Err, last.Fault, last.Intact, last.Seen = r.err, t.Fault, t.Intact, r.outcome == forbidden
	return r
}

// callsOf returns the batch of w in t, whose guard has moved the progress. b describes the batch.
func (c *consumerLoop) callsOf(w *work, t *batch.Tx, moved progress.Moved, b *observe.Batch) *batch.Batch {
	d := consumer.Delivery{Consumer: c.unit.consumerName, Partition: c.unit.slots.String(), Attempt: c.tally.Attempt()}
	if w.retried != nil {
		d.Attempt = w.retried.Attempts + 1
	}
	calls := &batch.Batch{
		Handler: c.handler, Tx: t, Events: w.Events, Late: w.late(), Delivery: d, Delivered: w.from.Effects, Pace: c.pace,
		Forget:  w.retried != nil && w.retried.Forget,
		Prepare: func(ctx context.Context) error { return c.deadLetters.write(ctx, c.w.db.Plans.On(t.Conn, t.Tx), w) },
		Shorten: func(ctx context.Context) error { return c.shorten(ctx, t, moved.Role, w, b) },
		Commit: func() error {
			c.check.Last.End = txcheck.Unsure
			err := t.Commit()
			c.check.Last.Sent(err)
			return err
		},
	}
	if w.retried == nil && c.poison == nil {
		calls.Until = time.Now().Add(time.Duration(c.w.limits.share * float64(c.w.cfg.BatchTimeout)))
	}
	return calls
}

// whyRefused returns why the guard has moved nothing, nil if the progress or the assignment has changed.
func (s statements) whyRefused(ctx context.Context, tx *sql.Tx, w *work) error {
	return s.quickly(ctx, func(ctx context.Context) error {
		return s.w.checkpoints.Refused(ctx, tx, s.unit.name, &w.from, w.advance)
	})
}

// guard runs the guard until it returns, intake ends, or the connection is found dead.
func (c *consumerLoop) guard(ctx, intake context.Context, conn *sql.Conn, tx *sql.Tx, w *work) (m progress.Moved, owned bool, err error) {
	inner, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	defer context.AfterFunc(intake, func() { giveUp(context.Cause(intake)) })()
	end := c.guards.Watch(inner, giveUp, c.w.sessionOf(conn))
	m, owned, err = c.w.checkpoints.Guard(inner, c.w.db.Plans.On(conn, tx), c.unit.name, &w.from, w.advance)
	end(err)
	return m, owned, lockwatch.WithCause(inner, ctx, err)
}

// shorten ends a batch at the last handled event, because half of BatchTimeout has passed.
// With its remaining events the batch might exceed BatchTimeout, and its handled events
// would be rolled back and handled again.
func (c *consumerLoop) shorten(ctx context.Context, t *batch.Tx, role string, w *work, b *observe.Batch) error {
	return progress.AsRole(ctx, t.Tx, role, func() error {
		if err := c.reader.Recount(ctx, t.Tx, w.advance.Token, &w.Page, t.Through); err != nil {
			return err
		}
		last := c.check.Last
		was := last.Left()
		w.deadLetters = slices.DeleteFunc(slices.Clone(w.deadLetters), func(l progress.DeadLetter) bool { return l.Position > t.Through })
		version, ok, err := c.w.checkpoints.Shorten(ctx, c.w.db.Plans.On(t.Conn, t.Tx), c.unit.name, was, w.endAt(t.Through))
		if err != nil {
			return err
		}
		if !ok {
			t.Ended = true
			return ErrTransactionEnded
		}
		w.shortened, w.last.position = true, 0
		last.Work, last.After = w.checked(c.reader), version
		b.Events, b.Late, b.Last, b.To = len(w.Events), w.late(), t.Through, w.advance.To
		return nil
	})
}

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
