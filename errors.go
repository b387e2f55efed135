package worker

import (
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/refusal"
	"github.com/pgfrontier/worker/observe"
)

var (
	// ErrConsecutiveFailures ends a worker whose consumer failed
	// MaxConsecutiveFailures times in a row. The error is a *ConsumerError,
	// which names the consumer and wraps the last cause.
	ErrConsecutiveFailures = errors.New("worker: a consumer failed too often in a row")

	// ErrOutage ends a worker whose database has failed for longer than
	// WithRetryLimit allows, when the worker starts or later.
	ErrOutage = refusal.ErrOutage

	// ErrTransactionEnded ends a worker whose handler committed or rolled
	// back the transaction that it was given, in whatever way. The error is a
	// *ConsumerError. It says what became of the batch, where the checkpoint
	// was set back to, and which events may be applied twice.
	ErrTransactionEnded = errors.New("worker: the handler ended the batch's transaction, which belongs to the worker: remove the Commit, Rollback or equivalent SQL from it")

	// ErrOutcomeUnknown ends a worker, or comes with its end, when an outage
	// hides what became of a batch that failed: whether its handler had ended
	// the transaction. The error is a *ConsumerError. It says how to find out,
	// and what to do if it had. Otherwise nothing is lost.
	ErrOutcomeUnknown = errors.New("worker: an outage hides whether a handler ended the batch's transaction")

	// ErrPoolClosed reports that the program closed db while the worker ran. Batches in flight
	// finish first. The other workers take over after HeartbeatTimeout.
	ErrPoolClosed = errors.New("worker: sql: database is closed: close db after Start has returned, not before")

	// ErrHandlerOverdue ends a stop that waited in vain for handlers. They
	// ignore the end of their context, and still run. The error names their
	// consumers.
	ErrHandlerOverdue = errors.New("worker: a handler ignores the end of its context: pass ctx on to everything that it waits for, return when it ends, and do not use tx inside of conn.Raw, which waits for itself")

	// ErrAlreadyStarted is the answer to a second Start.
	ErrAlreadyStarted = errors.New("worker: a Worker starts once; make another with New")

	// ErrPrivileges is in the error about what the database role of a worker lacks: the GRANTs
	// that mend it, and how it sees the rows that row-level security hides from it.
	ErrPrivileges = refusal.ErrPrivileges

	// ErrStandby is in the error of a worker whose server takes no writes: it is a standby, or its
	// sessions are read-only. A worker that meets one later goes on, and looks for the primary.
	ErrStandby = refusal.ErrStandby

	// ErrTransactionPooling: something between this worker and the server gives each
	// transaction another session, so that a session's locks protect nothing. Use
	// [LeaderStrategyLease], or connect directly or with session pooling.
	ErrTransactionPooling = refusal.ErrTransactionPooling

	// ErrPreparedStatements: something between this worker and the server gives
	// each transaction another session, and the driver prepares statements in one
	// session that it executes in the next. They are missing there, or somebody
	// else's.
	ErrPreparedStatements = refusal.ErrPreparedStatements

	// ErrInvalidConfig is in the error about what New was given.
	ErrInvalidConfig = refusal.ErrInvalidConfig
)

// Failures of a batch that are not the handler's own error.
var (
	errBatchTimeout = errors.New("the batch took longer than BatchTimeout")
	errConnClosed   = errors.New("the handler closed the connection of consumer.Conn, and a Close waits until the transaction ends: remove it")
	errNotCalled    = errors.New("the middleware did not call the next function, so nothing was done")
	errNilContext   = errors.New("the middleware called the next function with a nil context: pass on the one that it was given, or one made from it")
	errCutShort     = errors.New("a panic in the next function that the middleware has called ended the batch")
	errCalledTwice  = errors.New("the middleware has called the next function already")
	errCalledLate   = errors.New("the middleware has returned already, so the next function does nothing: call it before, and wait for it")
	errTxAborted    = errors.New("the handler returned no error, but a statement of its failed and PostgreSQL has aborted the transaction: return that error, or guard the statement by a savepoint")
)

// errGoexit ends a worker in which a goroutine was ended by what it called.
var errGoexit = errors.New("worker: a handler or a key called runtime.Goexit (testing's FailNow does), which ends a goroutine of the worker")

// ConsumerError tells which consumer failed, where, and why.
type ConsumerError struct {
	Consumer  string
	Failures  int       // in a row, at Position if that is known
	Position  int64     // of the event that was being handled, 0 if none was
	EventID   uuid.UUID // of that event
	EventType string    // of that event
	Err       error     // the cause
}

func (e *ConsumerError) Error() string {
	where := ""
	if e.Position > 0 {
		where = fmt.Sprintf(" at position %d (event %s, type %s)", e.Position, e.EventID, errtext.Value(e.EventType))
	}
	return errtext.Line(fmt.Sprintf("worker: consumer %q failed%s, %d in a row: %v", e.Consumer, where, e.Failures, errtext.Of(e.Err)))
}

// Unwrap gives the cause.
func (e *ConsumerError) Unwrap() error { return e.Err }

// PanicError is what a panic of a handler becomes. Its text names the line of
// the panic; the log has the whole stack.
type PanicError = observe.PanicError
