package consume

import (
	"context"
	"errors"
	"fmt"

	"github.com/pgfrontier/worker/internal/consume/failure"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

// fatalError returns the error that ends the worker after a handler ended its transaction.
// It also records the error in the status and notifies the observers.
//
// v is the verdict about the last batch, and to is the checkpoint now. failed is the error
// that kept the worker from learning the outcome, or nil. If the outcome is unknown, the
// error is ErrOutcomeUnknown. It is nil if the outcome is unknown and the driver has shown
// that the handler did not end the transaction.
func (c *consumerLoop) fatalError(ctx context.Context, v verdict, to int64, failed error) error {
	b := c.last
	b.compared = true
	cause, what := b.err, ErrTransactionEnded
	if v == handlerUnknown && !b.seen {
		what = ErrOutcomeUnknown
	}
	switch {
	case what == ErrOutcomeUnknown && b.intact:
		return nil
	case cause == nil:
		cause = what
	case !errors.Is(cause, what):
		cause = fmt.Errorf("%w; the batch failed with: %w", what, cause)
	}
	r := result{err: fmt.Errorf("%w: %s", cause, b.summary(v, to, failed))}
	if len(b.fault) == 1 {
		r.at = &b.fault[0]
	}
	e := consumerError(c.unit.name, r, failure.Decision{InARow: c.tally.Failures + 1})
	c.status.failed(e, e.Failures)
	c.w.observers.Notify(observe.TransactionEnded{Consumer: c.unit.name, From: b.work.advance.To, To: to, Unknown: errors.Is(e, ErrOutcomeUnknown), Err: e})
	return e
}

// summary describes what the handler did, what the worker did about it, and what the
// operator has to do.
func (b *lastBatch) summary(v verdict, to int64, failed error) string {
	at := ""
	if len(b.fault) > 0 {
		at = fmt.Sprintf(" at position %d", b.fault[0].GlobalPosition)
	}
	switch v {
	case handlerCommitted:
		back := fmt.Sprintf("is set back from %d to %d", b.work.advance.To, to)
		if to == b.work.advance.To {
			back = fmt.Sprintf("stays at %d", to) // a batch of late events or of a dead letter
		}
		return fmt.Sprintf("the batch was committed%s, and the checkpoint %s: nothing is lost, but %s may be applied twice", at, back, b.reapplied())
	case handlerRolledBack:
		return fmt.Sprintf("the batch was rolled back%s, and the checkpoint stays at %d: nothing is lost, but the handler's later writes may be applied twice", at, to)
	case handlerPrepared:
		twice := ""
		if b.end == done {
			twice = fmt.Sprintf("; another transaction followed, which was committed, so events up to position %d may be applied twice", b.work.advance.To)
		}
		return fmt.Sprintf("the batch was prepared%s, and no worker can run the consumer: ROLLBACK PREPARED %s; COMMIT PREPARED would move its checkpoint from %d to %d, past events that no handler has finished%s", at, b.prepared.GID, b.work.from.Position, b.work.advance.To, twice)
	case handlerOvertaken:
		return fmt.Sprintf("the batch was committed%s, and the consumer was moved since: %s", at, b.remedy())
	case handlerChained:
		return fmt.Sprintf("the batch was rolled back and followed by another transaction, which was committed: the checkpoint stays at %d and nothing is lost, but events up to position %d may be applied twice", b.work.from.Position, b.work.advance.To)
	}
	why := "the consumer was moved or the server crashed in the meantime"
	if failed != nil {
		why = errtext.Of(explain(failed)).Error()
	}
	return fmt.Sprintf("the outcome of the batch is unknown (%s): SELECT pg_xact_status('%s') shows it; if the transaction is committed, %s; otherwise nothing is lost", why, b.transaction, b.remedy())
}

// remedy returns the operator's steps if the checkpoint may be past unhandled events.
func (b *lastBatch) remedy() string {
	from := b.work.from.Position + 1
	if events := b.affected(); len(events) > 0 {
		from = events[0].GlobalPosition
	}
	return fmt.Sprintf("compare what the handler wrote with the events from position %d to %d, and reset the consumer (ops.Operator.Reset) if some are missing", from, b.work.advance.To)
}

// affected returns the events that were not handled, or were handled outside the batch's
// transaction.
func (b *lastBatch) affected() []store.PersistedEvent {
	if b.fault != nil {
		return b.fault
	}
	return b.work.Events
}

// reapplied describes the events that may be applied twice after a repair.
func (b *lastBatch) reapplied() string {
	events := b.affected()
	switch {
	case b.work.retried != nil:
		return fmt.Sprintf("the dead letter at position %d, which is back,", b.work.retried.Position)
	case len(events) == 1:
		return fmt.Sprintf("the event at position %d", events[0].GlobalPosition)
	case len(events) > 1:
		return fmt.Sprintf("the %d events from position %d to %d", len(events), events[0].GlobalPosition, events[len(events)-1].GlobalPosition)
	}
	return "nothing"
}
