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

	// ErrOutage ends a worker whose database has failed for longer than WithRetryLimit
	// allows, at the start or later.
	ErrOutage = consume.ErrOutage

	// ErrTransactionEnded ends a worker whose handler committed or rolled back the batch's
	// transaction, in whatever way. The error is a *ConsumerError. It names the outcome of
	// the batch and the new position of the checkpoint. It also names the events that may
	// be applied twice.
	ErrTransactionEnded = consume.ErrTransactionEnded

	// ErrOutcomeUnknown ends a worker, or is added to the error that ends it, if an outage
	// hides the outcome of a failed batch. The handler may have ended the batch's
	// transaction. The error is a *ConsumerError. It says how to find out, and what to do
	// if the handler had. Otherwise nothing is lost.
	ErrOutcomeUnknown = consume.ErrOutcomeUnknown

	// ErrPoolClosed reports that the program closed db while the worker ran. Batches in flight
	// finish first. The other workers take over after HeartbeatTimeout.
	ErrPoolClosed = consume.ErrPoolClosed

	// ErrHandlerOverdue ends a stop whose handlers ignore the end of their context and
	// still run. The error names their consumers.
	ErrHandlerOverdue = consume.ErrHandlerOverdue

	// ErrAlreadyStarted is the error of a second Start.
	ErrAlreadyStarted = consume.ErrAlreadyStarted

	// ErrPrivileges is the error if the worker's database role lacks privileges. It lists
	// the GRANTs to run. It also says how to make rows visible that row-level security
	// hides from the role.
	ErrPrivileges = consume.ErrPrivileges

	// ErrStandby is the error of a start on a server that takes no writes: a standby, or a
	// server with read-only sessions. A worker that meets a standby later continues, and
	// searches for the primary.
	ErrStandby = consume.ErrStandby

	// ErrTransactionPooling is the error behind a proxy with transaction pooling. Session locks
	// protect nothing there. Use [LeaderStrategyLease], or connect directly or with
	// session pooling.
	ErrTransactionPooling = consume.ErrTransactionPooling

	// ErrPreparedStatements is the error behind a proxy with transaction pooling if the driver
	// prepares statements. The next session lacks such a statement, or has another
	// client's under the same name.
	ErrPreparedStatements = consume.ErrPreparedStatements

	// ErrInvalidConfig is the error if an argument of New is invalid. It names the option, the value
	// and the range.
	ErrInvalidConfig = consume.ErrInvalidConfig

	// ErrDeadLettered is WaitFor's error for an event that is a dead letter of the
	// consumer. The event is handled only if an operator has it retried.
	ErrDeadLettered = consume.ErrDeadLettered

	// ErrNoConsumer is WaitFor's error for a consumer that has not run yet and that no
	// worker has code for. It is also the error for the name of a part.
	ErrNoConsumer = consume.ErrNoConsumer
)

// ConsumerError names the consumer that failed, the event and the cause.
type ConsumerError = observe.ConsumerError

// SetupError names a change in the database that breaks the frontier's proof, and the
// remedy.
type SetupError = frontier.SetupError
