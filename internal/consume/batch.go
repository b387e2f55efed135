package consume

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

// outcome is what a turn of the loop came to.
type outcome int

const (
	// idle: there is nothing to do until the frontier, or somebody else, moves.
	idle outcome = iota
	// again: there may be something to do at once.
	again
	// passedOver: the work that was read changes nothing.
	passedOver
	committed
	// passedLazily: nothing in the work is the part's own, and it can wait.
	passedLazily
	// overtaken: somebody else has moved the progress, or the guard found that
	// it, the assignment or the server's incarnation is not what it was. Load
	// again. An error is store.ErrIncarnation: another server answers.
	overtaken
	// handlerFailed counts against the consumer.
	handlerFailed
	// conflicted: PostgreSQL sacrificed the transaction. It counts only if it
	// happens to the same batch again and again.
	conflicted
	// disturbed: the server or our own statements. It never counts.
	disturbed
	// lost: the connection, or what the server lacked for a moment, while a
	// handler or the commit needed it. It counts if it happens to the same
	// event again, and to nobody else.
	lost
	// forbidden: the handler ended the transaction. Fatal, see lastBatch.
	forbidden
)

// result is an outcome with its details.
type result struct {
	outcome outcome
	err     error
	work    *work                 // nil: there was none
	at      *store.PersistedEvent // being handled when it failed
	moved   progress.Moved        // after a commit
	left    error                 // what a handler left on the connection
	many    bool                  // it failed for the sum of its events, see timedOut
	fatal   error                 // ends the worker, and there is nothing to settle
	waited  bool                  // the server ended the guard's wait for the row
	halved  bool                  // a page could not be read, and the next one is half as large
	began   time.Time             // the turn
}

// failed reports whether something went wrong.
func (r result) failed() bool { return r.outcome > overtaken }

// isOurs reports whether a statement of the worker failed, and not a handler.
func (r result) isOurs() bool {
	return r.outcome == disturbed || r.outcome == lost || r.outcome == overtaken && r.err != nil
}

// runBatch runs work in one transaction: guard, handlers, commit. intake ends
// when nothing new may begin: until the guard has returned, nothing has. From
// then on only ctx and BatchTimeout end the batch.
func (c *consumerLoop) runBatch(ctx, intake context.Context, conn *sql.Conn, w *work) (r result) {
	defer func() { r.work = w }()
	b := c.describe(w)
	c.w.observers.Notify(observe.BatchStarted{Batch: *b})
	defer func() { c.w.batchDone(b, r) }()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	began := time.Now()
	tx, err := c.begin(ctx, cancel, intake, conn)
	if err != nil {
		return result{outcome: disturbed, err: fmt.Errorf("worker: begin a batch: %w", err)}
	}
	defer c.rollback(tx, cancel)

	moved, owned, err := c.guard(ctx, intake, conn, tx, w)
	b.Guard = time.Since(began)
	switch {
	case pgdriver.IsTimeLimit(err):
		return result{outcome: disturbed, waited: true, err: fmt.Errorf("worker: guard of a batch: a time limit of the role, such as statement_timeout, ended the wait for the consumer's row, which another batch holds: raise the limit: %w", err)}
	case err != nil:
		return result{outcome: disturbed, err: fmt.Errorf("worker: guard of a batch: %w", err)}
	case !owned:
		return result{outcome: overtaken, err: c.whoRefused(ctx, tx, w.advance.Token)}
	}

	// Waiting for the guard is no fault of the handler: its clock starts now.
	deadline := time.AfterFunc(c.w.cfg.BatchTimeout, func() { cancel(c.timeout(conn)) })
	defer deadline.Stop()
	t := &transaction{Tx: tx, ctx: ctx, conn: conn, moved: moved, intact: true}
	_, t.marked = pgdriver.Status(conn)
	if w.retried == nil && c.poison == nil {
		t.until = time.Now().Add(time.Duration(c.w.limits.share * float64(c.w.cfg.BatchTimeout)))
	}
	defer c.watchHandler(ctx, t, *b)()
	c.last = &lastBatch{work: *w, after: moved.Version, transaction: moved.Transaction}
	r = c.wrapped(ctx, *b, func(inner context.Context) result { return c.fill(ctx, inner, t, w, b) })
	if r.outcome == committed {
		r.moved = moved
	}
	c.last.ended(r, t)
	return r
}

// guard waits for the guard, unless intake ends or the connection is dead.
func (c *consumerLoop) guard(ctx, intake context.Context, conn *sql.Conn, tx *sql.Tx, w *work) (m progress.Moved, owned bool, err error) {
	inner, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	defer context.AfterFunc(intake, func() { giveUp(context.Cause(intake)) })()
	end := c.watchGuard(inner, giveUp, conn)
	m, owned, err = c.w.checkpoints.Guard(inner, c.w.db.Plans.On(conn, tx), c.unit.name, &w.from, w.advance)
	end(err)
	return m, owned, why(inner, ctx, err)
}

// whoRefused returns store.ErrIncarnation if the guard was refused since
// another incarnation of the server has executed it than that of token.
func (c *consumerLoop) whoRefused(ctx context.Context, tx *sql.Tx, token string) (err error) {
	var is string
	err = c.quickly(ctx, func(ctx context.Context) (err error) {
		is, err = c.w.checkpoints.Incarnation(ctx, tx)
		return err
	})
	if err == nil && is != token {
		return store.ErrIncarnation
	}
	return err
}

// fill does what a batch is for, and commits it. The handlers get the context
// of the middleware.
func (c *consumerLoop) fill(ctx, inner context.Context, t *transaction, w *work, b *observe.Batch) result {
	if err := c.writeDeadLetters(ctx, c.w.db.Plans.On(t.conn, t.Tx), w); err != nil {
		return result{outcome: disturbed, err: err}
	}
	began := time.Now()
	at, err := c.handleAll(inner, t, w)
	if err == nil && t.through > 0 {
		err = c.shorten(ctx, t, w, b)
	}
	b.Handle = time.Since(began)
	if err != nil {
		return c.timedOut(c.classify(ctx, t, at, err), t, w)
	}
	c.pace = c.pace.handled(len(w.Events), b.Handle)
	began = time.Now()
	c.last.end = unsure
	err = t.Commit()
	c.last.sent(err)
	b.Commit = time.Since(began)
	if err != nil {
		return c.classifyCommit(ctx, err)
	}
	return result{outcome: committed}
}

// wrapped runs a batch inside the middleware, if there is one. Whatever that
// makes of the batch's error, what it returns is what happened.
func (c *consumerLoop) wrapped(ctx context.Context, b observe.Batch, fill func(context.Context) result) (r result) {
	middleware := c.w.cfg.BatchMiddleware
	if middleware == nil {
		return fill(ctx)
	}
	var p passage
	err := recovering(func() error {
		return middleware(func(ctx context.Context, _ observe.Batch) error {
			return p.through(ctx, func() error {
				r = fill(ctx)
				return r.err
			})
		})(ctx, b)
	})
	if err := p.broken(err); err != nil {
		return result{outcome: handlerFailed, err: err}
	}
	return r
}

// batchDone reports a batch with its result.
func (w *Worker) batchDone(b *observe.Batch, r result) {
	b.Overtaken, b.Err = r.outcome == overtaken, r.err
	w.observers.Notify(observe.BatchDone{Batch: *b})
}

// describe describes a batch that is about to begin.
func (c *consumerLoop) describe(w *work) *observe.Batch {
	b := &observe.Batch{Consumer: c.unit.name, Attempt: c.tallyOf(w.retried).attempt(), Events: len(w.Events), From: w.from.Position, To: w.advance.To, Read: w.Took}
	if n := len(w.Events); n > 0 {
		b.First, b.Last = w.Events[0].GlobalPosition, w.Events[n-1].GlobalPosition
	}
	b.Late = w.late()
	return b
}
