package worker

import (
	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/consume"
	"github.com/pgfrontier/worker/observe"
)

var (
	// ErrConsecutiveFailures ends a worker whose consumer failed
	// MaxConsecutiveFailures times in a row. The error is a *ConsumerError,
	// which names the consumer and wraps the last cause.
	ErrConsecutiveFailures = consume.ErrConsecutiveFailures

	// ErrOutage ends a worker whose database has failed for longer than
	// WithRetryLimit allows, when the worker starts or later.
	ErrOutage = consume.ErrOutage

	// ErrTransactionEnded ends a worker whose handler committed or rolled
	// back the transaction that it was given, in whatever way. The error is a
	// *ConsumerError. It says what became of the batch, where the checkpoint
	// was set back to, and which events may be applied twice.
	ErrTransactionEnded = consume.ErrTransactionEnded

	// ErrOutcomeUnknown ends a worker, or comes with its end, when an outage
	// hides what became of a batch that failed: whether its handler had ended
	// the transaction. The error is a *ConsumerError. It says how to find out,
	// and what to do if it had. Otherwise nothing is lost.
	ErrOutcomeUnknown = consume.ErrOutcomeUnknown

	// ErrPoolClosed reports that the program closed db while the worker ran. Batches in flight
	// finish first. The other workers take over after HeartbeatTimeout.
	ErrPoolClosed = consume.ErrPoolClosed

	// ErrHandlerOverdue ends a stop that waited in vain for handlers. They
	// ignore the end of their context, and still run. The error names their
	// consumers.
	ErrHandlerOverdue = consume.ErrHandlerOverdue

	// ErrAlreadyStarted is the answer to a second Start.
	ErrAlreadyStarted = consume.ErrAlreadyStarted

	// ErrPrivileges is in the error about what the database role of a worker lacks: the GRANTs
	// that mend it, and how it sees the rows that row-level security hides from it.
	ErrPrivileges = consume.ErrPrivileges

	// ErrStandby is in the error of a worker whose server takes no writes: it is a standby, or its
	// sessions are read-only. A worker that meets one later goes on, and looks for the primary.
	ErrStandby = consume.ErrStandby

	// ErrTransactionPooling: something between this worker and the server gives each
	// transaction another session, so that a session's locks protect nothing. Use
	// [LeaderStrategyLease], or connect directly or with session pooling.
	ErrTransactionPooling = consume.ErrTransactionPooling

	// ErrPreparedStatements: something between this worker and the server gives
	// each transaction another session, and the driver prepares statements in one
	// session that it executes in the next. They are missing there, or somebody
	// else's.
	ErrPreparedStatements = consume.ErrPreparedStatements

	// ErrInvalidConfig is in the error about what New was given.
	ErrInvalidConfig = consume.ErrInvalidConfig

	// ErrDeadLettered is WaitFor's answer for an event that is among the dead
	// letters of the consumer: it will be handled when an operator says so.
	ErrDeadLettered = consume.ErrDeadLettered

	// ErrNoConsumer is WaitFor's answer for a consumer that has never run, and that
	// no worker has code for, and for a part of one.
	ErrNoConsumer = consume.ErrNoConsumer
)

// ConsumerError tells which consumer failed, where, and why.
type ConsumerError = observe.ConsumerError

// PanicError is what a panic of a handler becomes. Its text names the line of
// the panic; the log has the whole stack.
type PanicError = observe.PanicError

// SetupError tells what was altered in the database that the frontier's proof
// rests on, and the remedy. It wraps one of the errors of package frontier.
type SetupError = frontier.SetupError
