package batch

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/consume/failure"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// classify returns the kind and the error of a batch that failed with err while its
// handlers were running.
func classify(ctx context.Context, t *Tx, err error) (failure.Kind, error) {
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, errBatchTimeout):
		// The connection may be broken too, since BatchTimeout closed it.
		return failure.Handler, withReturned(cause, err)
	case cause != nil:
		return failure.Database, withReturned(cause, err) // the worker is stopping
	case t.Ended:
		return failure.Ended, err
	case errors.As(err, new(keyError)):
		return failure.Database, err // no handler was called
	case pgdriver.IsTransactionTimeout(err):
		return failure.Handler, err
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		// The batch's context has not ended, so the deadline was the handler's own. pgx
		// closes the connection when a statement's context ends.
		return failure.Handler, err
	case pgdriver.IsConflict(err):
		return failure.Conflict, err
	case pgdriver.SQLState(err) == pgdriver.DiskFull:
		return failure.Database, err
	case pgdriver.IsGone(t.Conn), pgdriver.IsOutOfResources(err):
		return failure.Loss, err
	case pgdriver.SQLState(err) == pgdriver.InFailedTransaction:
		return failure.Handler, fmt.Errorf("%w: %w", pgdriver.ErrTxAborted, err)
	}
	// Any other error is the handler's, also the loss of a connection of its own.
	return failure.Handler, err
}

// withReturned adds the handler's error to the cause that ended a batch, unless the error
// only repeats the cause.
func withReturned(cause, err error) error {
	switch {
	case err == nil, errors.Is(cause, err), err == context.Canceled, err == context.DeadlineExceeded:
		return cause
	}
	return fmt.Errorf("%w; the handler returned: %w", cause, err)
}

// timedOut marks the result of a batch that exceeded BatchTimeout because it had too many
// events. The sign is that the last call of the handler took less than half of
// BatchTimeout, or all have returned. Then no event is to blame. done events were handled.
func (b *Batch) timedOut(r *Result, done int) {
	n, t := len(b.Events), b.Tx
	if n < 2 || !errors.Is(r.Err, errBatchTimeout) || t.Through == 0 && len(t.call) == 1 && time.Since(t.called) > b.Timeout/2 {
		return
	}
	begun := n
	if t.Through > 0 { // Shorten took too long, after the call of the last handled event
		begun = done
	} else if r.At != nil {
		begun = 1 + slices.IndexFunc(b.Events, func(e store.PersistedEvent) bool { return e.GlobalPosition == r.At.GlobalPosition })
	}
	r.Pace = r.Pace.TimedOut(begun, b.Timeout)
	r.Many, r.At = true, nil
	r.Err = fmt.Errorf("%w, with %d of %d events begun: the next batch has at most %d; lower WithBatchSize, or raise WithBatchTimeout", r.Err, begun, n, r.Pace.Size(b.Size, b.Timeout))
}

// TimedOut returns the error of a batch on conn that exceeded BatchTimeout.
func (h *Handler) TimedOut(conn *sql.Conn) error {
	err := fmt.Errorf("%w (%v)", errBatchTimeout, h.Timeout)
	if pgdriver.IsClosed(conn) {
		err = fmt.Errorf("%w: %w", err, errConnClosed)
	}
	return err
}

// classifyCommit returns the kind and the error of a failed COMMIT. It does not decide
// whether the commit happened: the revision of the loaded progress shows that.
func classifyCommit(ctx context.Context, err error) (failure.Kind, error) {
	failed := fmt.Errorf("commit: %w", err)
	switch {
	case errors.Is(context.Cause(ctx), errBatchTimeout):
		// A dead network seems the same.
		return failure.Loss, fmt.Errorf("%w, in its commit", context.Cause(ctx))
	case ctx.Err() != nil:
		return failure.Database, failed
	case pgdriver.IsNotSent(err):
		return failure.Ended, fmt.Errorf("%w (%v)", ErrTransactionEnded, err)
	case pgdriver.IsConflict(err):
		return failure.Conflict, failed
	case pgdriver.SQLState(err) == pgdriver.DiskFull:
		return failure.Database, failed
	case pgdriver.IsOutOfResources(err):
		return failure.Loss, failed
	case pgdriver.IsRolledBack(err):
		return failure.Handler, fmt.Errorf("%w: %w", pgdriver.ErrTxAborted, failed)
	case pgdriver.IsTransactionTimeout(err):
		return failure.Handler, failed
	case pgdriver.SQLState(err) != "" && !pgdriver.IsConnectionLoss(err):
		return failure.Handler, failed // for example a deferred constraint
	}
	return failure.Loss, failed
}
