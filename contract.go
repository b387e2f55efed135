package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// lastBatch is the last batch whose guard let it through. The checkpoint's row
// shows afterwards whether the guard was committed. If that is not what this
// worker did, the batch's handler ended the transaction. This shows with any
// driver, and whatever the handler did next: after a COMMIT AND CHAIN there is
// a transaction as before.
//
// Another worker's batch may bring a revision and a place of the row again. The
// transaction that wrote the row never comes again in one incarnation. After a
// crash it may: that takes back what is not on disk. Only the time of writing
// tells the two apart then.
type lastBatch struct {
	page          page
	advance       advance
	position      int64 // before the batch
	open          []openRange
	before, after rowState

	end    ending
	err    error
	seen   bool                   // the driver has shown that the handler ended it
	fault  []store.PersistedEvent // of the call of the handler in which it did; nil: not known
	looked bool                   // the row was loaded since
	gid    string                 // of the prepared transaction, for handlerPrepared
}

// ending is how this worker ended a batch's transaction.
type ending int

const (
	abandoned ending = iota // it committed nothing
	unsure                  // it sent a COMMIT and lost the answer
	done                    // it committed
)

// verdict says what a batch's handler did to the transaction.
type verdict int

const (
	innocent verdict = iota
	// handlerCommitted: the checkpoint stands at the batch's end. The events
	// behind the handler's commit are lost unless it is set back.
	handlerCommitted
	// handlerRolledBack: nothing of the batch has happened.
	handlerRolledBack
	// handlerChained: the guard was rolled back. What followed it was
	// committed, and will be done again.
	handlerChained
	// handlerPrepared: the guard lives on in a prepared transaction.
	handlerPrepared
	// handlerUnknown: the handler ended the transaction, and somebody else has
	// moved the consumer since.
	handlerUnknown
)

// errRowTells reports that the row shows what only a handler can have done.
var errRowTells = errors.New("worker: the checkpoint shows that a handler ended its transaction")

// sent takes note of what became of our COMMIT, before anything of the user
// runs again: that may end the goroutine.
func (b *lastBatch) sent(err error) {
	switch {
	case err == nil:
		b.end, b.page, b.open = done, page{}, nil
	case pgdriver.IsNotSent(err), pgdriver.IsRefused(err):
		b.end = abandoned
	default:
		b.end = unsure
	}
}

// ended takes note of how the batch failed, if it did.
func (b *lastBatch) ended(r result, t *transaction) {
	b.err, b.fault = r.err, t.fault
	b.seen = r.outcome == forbidden
}

// judge compares the row with what this worker knows of the batch. A row as the
// guard wrote it proves its commit, in each incarnation. The row before it proves
// nothing in another: a crash may have taken back a commit.
func (b *lastBatch) judge(now *progress) verdict {
	switch {
	case b == nil:
		return innocent
	case b.end == abandoned && now.rowState == b.after:
		return handlerCommitted
	case now.token == b.advance.token && b.end == done && now.rowState == b.before:
		return handlerChained
	case b.seen && now.rowState == b.before:
		return handlerRolledBack
	case b.seen:
		return handlerUnknown
	}
	return innocent
}

// isOpen reports whether the row may show more than this worker knows.
func (b *lastBatch) isOpen() bool { return b != nil && b.end == abandoned && !b.looked }

// look takes note of the row, and reports whether it shows that the handler
// ended the transaction.
func (b *lastBatch) look(now *progress) bool {
	if b == nil {
		return false
	}
	b.looked = now.token == b.advance.token
	b.seen = b.judge(now) != innocent
	return b.seen
}

// rowTells reports whether a handler has ended its transaction, after a step
// that returned err. It loads the row after every batch that failed: the worker
// may end before the next load, and nobody would set the checkpoint back.
func (c *consumerLoop) rowTells(ctx context.Context, err error) bool {
	switch {
	case errors.Is(err, errRowTells):
		return true
	case !c.last.isOpen():
		return false
	case c.last.seen:
		return true
	}
	ctx, cancel := inquiry(ctx)
	defer cancel()
	conn, release, err := c.w.loopConn(ctx, c.patience())
	if err != nil {
		return false // the next load will tell
	}
	defer func() { _ = release(err) }()
	now, err := c.w.checkpoints.Load(ctx, conn, c.unit.name)
	return err == nil && c.last.look(now)
}

// inquiry bounds a look at the row, or its repair. The end of the worker does
// not end it: what is not set back then, nobody will.
func inquiry(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), farewell)
}

// answer repairs what a handler did that ended its transaction, and returns
// the error that ends the worker. It tries until the database answers. The end
// of the intake leaves it a moment: an outage often ends the intake, too, and
// nobody else would set the checkpoint back.
func (c *consumerLoop) answer(ctx, intake context.Context) error {
	began, limit := time.Now(), c.w.cfg.RetryLimit
	moment, cancel := inquiry(ctx)
	defer cancel()
	for n := 1; ; n++ {
		within := moment
		if intake.Err() == nil {
			within = context.WithoutCancel(ctx)
		}
		v, to, err := c.inquire(within)
		if err == nil || intake.Err() != nil && moment.Err() != nil || limit > 0 && time.Since(began) > limit {
			return c.accuse(ctx, v, to, err)
		}
		c.status.disturbed(err)
		c.w.cfg.Logger.Error(ctx, "cannot see what a handler did to its transaction, retrying", "consumer", c.unit.name, "error", err)
		pause := backoff.Infrastructure(n)
		if !backoff.Sleep(intake, pause) && !backoff.Sleep(moment, pause) {
			return c.accuse(ctx, v, to, err)
		}
	}
}

// inquire judges the last batch by the row, and sets the checkpoint back if the
// handler committed.
func (c *consumerLoop) inquire(ctx context.Context) (v verdict, to int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, farewell)
	defer cancel()
	conn, release, err := c.w.loopConn(ctx, c.patience())
	if err != nil {
		return handlerUnknown, 0, err
	}
	defer func() { _ = release(err) }()
	b := c.last
	now, err := c.w.checkpoints.Load(ctx, conn, c.unit.name)
	if err != nil {
		return handlerUnknown, 0, err
	}
	if now.token != b.advance.token && now.token != c.w.frontier.Value().Token {
		return handlerUnknown, 0, store.ErrIncarnation // perhaps another server
	}
	if v = b.judge(now); v == handlerCommitted {
		m := b.repair()
		b.advance.token = now.token
		var repaired bool
		if repaired, err = c.w.checkpoints.Repair(ctx, conn, c.unit.name, b, m); !repaired {
			v = handlerUnknown
		}
		to = m.to
	}
	if v == handlerRolledBack {
		if b.gid, err = c.w.checkpoints.Prepared(ctx, conn, b.after.author); b.gid != "" {
			v = handlerPrepared
		}
	}
	return v, to, err
}

// Prepared returns the name of the prepared transaction with that id, empty if
// there is none.
func (c checkpoints) Prepared(ctx context.Context, q store.Querier, transaction string) (gid string, err error) {
	err = q.QueryRowContext(ctx, `
SELECT coalesce(max(gid), '') FROM pg_catalog.pg_prepared_xacts WHERE transaction::text = $1::text AND database = current_database()`, transaction).Scan(&gid)
	if err != nil {
		err = fmt.Errorf("worker: look for a prepared transaction: %w", err)
	}
	return gid, err
}

// accuse makes the error that ends the worker. failed is why nothing could be
// found out.
func (c *consumerLoop) accuse(ctx context.Context, v verdict, to int64, failed error) error {
	b := c.last
	b.looked = true
	cause := b.err
	switch {
	case cause == nil:
		cause = ErrTransactionEnded
	case !errors.Is(cause, ErrTransactionEnded):
		cause = fmt.Errorf("%w; the batch failed with: %w", ErrTransactionEnded, cause)
	}
	r := result{err: fmt.Errorf("%w: %s", cause, b.tell(v, to, failed))}
	if len(b.fault) == 1 {
		r.at = &b.fault[0]
	}
	e := c.consumerError(r, decision{inARow: c.tally.failures + 1})
	c.status.failed(e, e.Failures)
	c.w.cfg.Logger.Error(ctx, "handler ended its transaction", "consumer", c.unit.name, "error", e)
	return e
}

// tell says what the handler did, what was done about it, and what is left to
// do.
func (b *lastBatch) tell(v verdict, to int64, failed error) string {
	at := ""
	if len(b.fault) > 0 {
		at = fmt.Sprintf(" at position %d", b.fault[0].GlobalPosition)
	}
	switch v {
	case handlerCommitted:
		back := fmt.Sprintf("is set back from %d to %d", b.advance.to, to)
		if to == b.advance.to {
			back = fmt.Sprintf("stays at %d", to) // a batch of late events, or of a dead letter
		}
		return fmt.Sprintf("the batch was committed%s, and the checkpoint %s: nothing is lost, but %s may be applied twice", at, back, b.twice())
	case handlerRolledBack:
		return fmt.Sprintf("the batch was rolled back%s, and the checkpoint stays at %d: nothing is lost, but what the handler wrote after that may be applied twice", at, b.position)
	case handlerPrepared:
		return fmt.Sprintf("the batch was prepared%s, and nobody can go on with the consumer: ROLLBACK PREPARED '%s'; COMMIT PREPARED would move its checkpoint from %d to %d, past events that no handler has finished", at, b.gid, b.position, b.advance.to)
	case handlerChained:
		return fmt.Sprintf("the batch was rolled back and followed by another transaction, which was committed: the checkpoint stays at %d and nothing is lost, but events up to position %d may be applied twice", b.position, b.advance.to)
	}
	why := "the consumer was moved or the server crashed meanwhile"
	if failed != nil {
		why = errtext.Line(explain(failed).Error())
	}
	events := b.affected()
	from := b.position + 1
	if len(events) > 0 {
		from = events[0].GlobalPosition
	}
	return fmt.Sprintf("what became of the batch is not known (%s): compare what the handler wrote with the events from position %d to %d, and reset the consumer (ops.Operator.Reset) if some are missing", why, from, b.advance.to)
}

// affected are the events that were handled outside of the batch's transaction
// or not at all.
func (b *lastBatch) affected() []store.PersistedEvent {
	if b.fault != nil {
		return b.fault
	}
	return b.page.events
}

// twice says which events may be applied twice after a repair.
func (b *lastBatch) twice() string {
	events := b.affected()
	switch {
	case b.page.retried != nil:
		return fmt.Sprintf("the dead letter at position %d, which is back,", b.page.retried.position)
	case len(events) == 1:
		return fmt.Sprintf("the event at position %d", events[0].GlobalPosition)
	case len(events) > 1:
		return fmt.Sprintf("the %d events from position %d to %d", len(events), events[0].GlobalPosition, events[len(events)-1].GlobalPosition)
	}
	return "nothing"
}
