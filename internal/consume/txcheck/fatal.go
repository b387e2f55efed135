package txcheck

import (
	"errors"
	"fmt"

	"github.com/pgfrontier/worker/internal/consume/batch"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/store"
)

// Fatal is how a handler ended its transaction, and what became of the checkpoint. It ends
// the worker.
type Fatal struct {
	Err      error
	At       *store.PersistedEvent // the event whose call ended the transaction; nil: unknown
	From, To int64                 // the checkpoint at the batch's end, and now
}

// fatal returns how the handler ended its transaction. v is the verdict, and to is the
// checkpoint now. failed is the error that kept the worker from learning the outcome, or
// nil. If the outcome is unknown, the error is ErrOutcomeUnknown. fatal returns nil if the
// outcome is unknown and the driver has shown that the handler did not end the transaction.
func (b *Batch) fatal(v verdict, to int64, failed error) *Fatal {
	cause, what := b.Err, batch.ErrTransactionEnded
	if v == handlerUnknown && !b.Seen {
		what = ErrOutcomeUnknown
	}
	switch {
	case what == ErrOutcomeUnknown && b.Intact:
		return nil
	case cause == nil:
		cause = what
	case !errors.Is(cause, what):
		cause = fmt.Errorf("%w; the batch failed with: %w", what, cause)
	}
	f := &Fatal{Err: fmt.Errorf("%w: %s", cause, b.summary(v, to, failed)), From: b.To, To: to}
	if len(b.Fault) == 1 {
		f.At = &b.Fault[0]
	}
	return f
}

// summary describes what the handler did, what the worker did about it, and what the
// operator has to do.
func (b *Batch) summary(v verdict, to int64, failed error) string {
	at := ""
	if len(b.Fault) > 0 {
		at = fmt.Sprintf(" at position %d", b.Fault[0].GlobalPosition)
	}
	switch v {
	case handlerCommitted:
		back := fmt.Sprintf("is set back from %d to %d", b.To, to)
		if to == b.To {
			back = fmt.Sprintf("stays at %d", to) // a batch of late events or of a dead letter
		}
		return fmt.Sprintf("the batch was committed%s, and the checkpoint %s: nothing is lost, but %s may be applied twice", at, back, b.reapplied())
	case handlerRolledBack:
		return fmt.Sprintf("the batch was rolled back%s, and the checkpoint stays at %d: nothing is lost, but the handler's later writes may be applied twice", at, to)
	case handlerPrepared:
		twice := ""
		if b.End == Done {
			twice = fmt.Sprintf("; another transaction followed, which was committed, so events up to position %d may be applied twice", b.To)
		}
		return fmt.Sprintf("the batch was prepared%s, and no worker can run the consumer: ROLLBACK PREPARED %s; COMMIT PREPARED would move its checkpoint from %d to %d, past events that no handler has finished%s", at, b.prepared.GID, b.From, b.To, twice)
	case handlerOvertaken:
		return fmt.Sprintf("the batch was committed%s, and the consumer was moved since: %s", at, b.remedy())
	case handlerChained:
		return fmt.Sprintf("the batch was rolled back and followed by another transaction, which was committed: the checkpoint stays at %d and nothing is lost, but events up to position %d may be applied twice", b.From, b.To)
	}
	why := "the consumer was moved or the server crashed in the meantime"
	if failed != nil {
		why = errtext.Of(failed).Error()
	}
	return fmt.Sprintf("the outcome of the batch is unknown (%s): SELECT pg_xact_status('%s') shows it; if the transaction is committed, %s; otherwise nothing is lost", why, b.Transaction, b.remedy())
}

// remedy returns the operator's steps if the checkpoint may be past unhandled events.
func (b *Batch) remedy() string {
	from := b.From + 1
	if events := b.affected(); len(events) > 0 {
		from = events[0].GlobalPosition
	}
	return fmt.Sprintf("compare what the handler wrote with the events from position %d to %d, and reset the consumer (ops.Operator.Reset) if some are missing", from, b.To)
}

// affected returns the events that were not handled, or were handled outside the batch's
// transaction.
func (b *Batch) affected() []store.PersistedEvent {
	if b.Fault != nil {
		return b.Fault
	}
	return b.Events
}

// reapplied describes the events that may be applied twice after a repair.
func (b *Batch) reapplied() string {
	events := b.affected()
	switch {
	case b.Retried != 0:
		return fmt.Sprintf("the dead letter at position %d, which is back,", b.Retried)
	case len(events) == 1:
		return fmt.Sprintf("the event at position %d", events[0].GlobalPosition)
	case len(events) > 1:
		return fmt.Sprintf("the %d events from position %d to %d", len(events), events[0].GlobalPosition, events[len(events)-1].GlobalPosition)
	}
	return "nothing"
}

// Left returns the row as the batch left it.
func (b *Batch) Left() progress.Committed {
	return progress.Committed{After: b.After, To: b.To, Head: b.Head, Token: b.Token, Reason: "the handler committed " + b.reapplied()}
}

// through returns the position up to which the batch has handled its events.
func (b *Batch) through() int64 {
	if len(b.Fault) == 0 {
		return 0
	}
	return b.Fault[0].GlobalPosition - 1
}
