package consume

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// classify returns the result of a batch that failed with err while its handlers were
// running.
func (c *consumerLoop) classify(ctx context.Context, t *transaction, at *store.PersistedEvent, err error) result {
	r := result{err: err, at: at}
	cause := context.Cause(ctx)
	var ofKey keyError
	switch {
	case errors.Is(cause, errBatchTimeout):
		// The connection may be broken too, since BatchTimeout closed it.
		r.outcome = handlerFailed
		r.err = withReturned(cause, err)
	case cause != nil:
		r.outcome, r.err = disturbed, withReturned(cause, err) // the worker is stopping
	case t.ended:
		r.outcome = forbidden
	case errors.As(err, &ofKey):
		r.outcome = disturbed // no handler was called
	case pgdriver.IsTransactionTimeout(err):
		r.outcome = handlerFailed
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		// The batch's context has not ended, so the deadline was the handler's own. pgx
		// closes the connection when a statement's context ends.
		r.outcome = handlerFailed
	case pgdriver.IsConflict(err):
		r.outcome = conflicted
	case pgdriver.SQLState(err) == pgdriver.DiskFull:
		r.outcome = disturbed
	case pgdriver.IsGone(t.conn), pgdriver.IsOutOfResources(err):
		r.outcome = lost
	default:
		// Any other error is the handler's, also the loss of a connection of its own.
		r.outcome = handlerFailed
	}
	return r
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
// BatchTimeout. Then no event is to blame.
func (c *consumerLoop) timedOut(r result, t *transaction, w *work) result {
	n := len(w.Events)
	if n < 2 || !errors.Is(r.err, errBatchTimeout) || len(t.call) == 1 && time.Since(t.called) > c.w.cfg.BatchTimeout/2 {
		return r
	}
	begun := n
	if i := w.index(r.at); i >= 0 {
		begun = i + 1
	}
	c.pace = c.pace.timedOut(begun, c.w.cfg.BatchTimeout)
	r.many, r.at = true, nil
	r.err = fmt.Errorf("%w, with %d of %d events begun: the next batch has at most %d; lower WithBatchSize, or raise WithBatchTimeout", r.err, begun, n, c.batchSize())
	return r
}

// timeout is the error of a batch on conn that exceeded BatchTimeout.
func (c *consumerLoop) timeout(conn *sql.Conn) error {
	err := fmt.Errorf("%w (%v)", errBatchTimeout, c.w.cfg.BatchTimeout)
	if pgdriver.IsClosed(conn) {
		err = fmt.Errorf("%w: %w", err, errConnClosed)
	}
	return err
}

// classifyCommit returns the result of a failed COMMIT. It does not decide whether the
// commit happened: the revision of the loaded progress shows that.
func (c *consumerLoop) classifyCommit(ctx context.Context, err error) result {
	r := result{err: fmt.Errorf("commit: %w", err)}
	notSent := pgdriver.IsNotSent(err)
	switch {
	case errors.Is(context.Cause(ctx), errBatchTimeout):
		// A dead network looks the same.
		r.outcome = lost
		r.err = fmt.Errorf("%w, in its commit", context.Cause(ctx))
	case ctx.Err() != nil:
		r.outcome = disturbed
	case notSent:
		r.outcome, r.err = forbidden, fmt.Errorf("%w (%v)", ErrTransactionEnded, err)
	case pgdriver.IsConflict(err):
		r.outcome = conflicted
	case pgdriver.SQLState(err) == pgdriver.DiskFull:
		r.outcome = disturbed
	case pgdriver.IsOutOfResources(err):
		r.outcome = lost
	case pgdriver.IsRolledBack(err), pgdriver.IsTransactionTimeout(err):
		r.outcome = handlerFailed
	case pgdriver.SQLState(err) != "" && !pgdriver.IsConnectionLoss(err):
		r.outcome = handlerFailed // for example a deferred constraint
	default:
		r.outcome = lost
	}
	return r
}
