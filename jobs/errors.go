package jobs

import (
	"errors"
	"fmt"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/refusal"
)

var (
	// ErrInvalidConfig reports that NewWorker was given an invalid configuration. The error names
	// each problem.
	ErrInvalidConfig = refusal.ErrInvalidConfig
	// ErrOutage reports that the database could not be reached for WithStartLimit.
	ErrOutage = refusal.ErrOutage
	// ErrAlreadyStarted reports a second Start: a Worker starts once.
	ErrAlreadyStarted = errors.New("jobs: the worker was started before: make another one with NewWorker")
	// ErrInvalid reports that a job cannot be enqueued as given.
	ErrInvalid = errors.New("jobs: invalid job")
	// ErrKeyReused reports that a job of another kind or with other arguments has this key of Once.
	ErrKeyReused = errors.New("jobs: another job was enqueued under this key")
	// ErrUniqueBusy reports that the unique key changed owners during all tries. In a try, the job
	// that held the key had ended when it was read, and another job had the key at the enqueue. Try
	// again.
	ErrUniqueBusy = errors.New("jobs: the unique key changed owners at every try: try again")
	// ErrNotFound reports that no job has this ID. The job may have finished longer ago than
	// finished jobs are kept.
	ErrNotFound = errors.New("jobs: no such job")
	// ErrClaimLost ends the context of a run that has lost its job. Either this worker was taken
	// for dead, and another worker runs the job or will run it. Or the job was deleted from the
	// table. What the run returns has no effect.
	ErrClaimLost = errors.New("jobs: this run has lost its job: another worker has the job, or its row was deleted")
	// ErrCancelled ends the context of a run whose job was cancelled.
	ErrCancelled = errors.New("jobs: the job was cancelled")
	// ErrTimeout ends the context of a run that takes longer than its Timeout.
	ErrTimeout = errors.New("jobs: the handler's Timeout is over")
	// ErrHandlerOverdue reports handlers that ignore the end of their context. Start has returned
	// without them.
	ErrHandlerOverdue = errors.New("jobs: handlers ignore the end of their context: pass ctx on to everything that they wait for, return when it ends, and do not use tx inside of conn.Raw, which waits for itself")
	// ErrPoolClosed reports that db was closed while the worker ran. The contexts of the handlers
	// have ended with this error, and the jobs run again.
	ErrPoolClosed = errors.New("jobs: sql: database is closed: close db after Start has returned, not before")
	// ErrPrivileges reports that the role lacks privileges, or that row-level security hides rows
	// from the role. The error names the remedies.
	ErrPrivileges = refusal.ErrPrivileges
	// ErrStandby reports that the server takes no writes.
	ErrStandby = refusal.ErrStandby
	// ErrTransactionPooling reports a proxy with transaction pooling. Locks of a session protect
	// nothing there.
	ErrTransactionPooling = refusal.ErrTransactionPooling
	// ErrPreparedStatements reports that the driver prepares statements behind such a proxy. The
	// driver may execute a statement in another session than it prepared the statement in.
	ErrPreparedStatements = refusal.ErrPreparedStatements
	// ErrTxEnded reports that the handler of RegisterTx has ended its transaction.
	ErrTxEnded = errors.New("jobs: the handler ended its transaction: return an error to roll it back, nil to commit it")

	// errStopping ends the context of a run that a stop no longer waits for.
	errStopping = errors.New("jobs: the worker stops (WithShutdownTimeout)")
	// errGone is the failure of a handler that has removed its own job in its transaction.
	errGone = errors.New("the handler has removed its job in its transaction: it must leave its row alone (to end the job, return Discard or Fail)")
	// errSilent ends a transaction whose last statements got no answer.
	errSilent = errors.New("the database does not answer")
	// errGoexit is the failure of a handler that calls runtime.Goexit.
	errGoexit = errors.New("the handler called runtime.Goexit, which ends its goroutine: FailNow of testing does that")
	// errGoroutine ends a worker after a call of the driver or of an error's method has ended a
	// goroutine.
	errGoroutine = errors.New("jobs: the driver, or a method of an error, has ended a goroutine of the worker with runtime.Goexit")
)

// FailedError is what [Wait] returns for a job that has ended and has not completed.
type FailedError struct {
	ID    int64
	State State
	Code  string
	Text  string // of the last error
}

func (e *FailedError) Error() string {
	return errtext.Outcome(fmt.Sprintf("jobs: job %d", e.ID), string(e.State), e.Code, e.Text)
}
