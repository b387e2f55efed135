package jobs

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/refusal"
)

var (
	// ErrInvalidConfig: what NewWorker was given cannot work; the error names all
	// that is wrong.
	ErrInvalidConfig = refusal.ErrInvalidConfig
	// ErrOutage: the database could not be reached for WithStartLimit.
	ErrOutage = refusal.ErrOutage
	// ErrAlreadyStarted: a Worker starts once.
	ErrAlreadyStarted = errors.New("jobs: the worker was started before: make another one with NewWorker")
	// ErrInvalid: a job cannot be enqueued as it is.
	ErrInvalid = errors.New("jobs: invalid job")
	// ErrKeyReused: a job with other arguments was enqueued under this key of Once.
	ErrKeyReused = errors.New("jobs: another job was enqueued under this key")
	// ErrUniqueBusy: the job that held the unique key has ended each time that it was
	// looked for, and another one had the key each time it was enqueued. Try again.
	ErrUniqueBusy = errors.New("jobs: the unique key changes hands too fast")
	// ErrNotFound: no job has this id. It may have ended longer ago than finished
	// jobs are kept.
	ErrNotFound = errors.New("jobs: no such job")
	// ErrClaimLost ends the context of a run whose job another worker runs, or will, since
	// this one was taken for dead; or whose job was deleted from the table. What the run
	// returns is of no effect.
	ErrClaimLost = errors.New("jobs: this run has lost its job: another worker has taken it, or somebody has deleted it")
	// ErrCancelled ends the context of a run whose job somebody has cancelled.
	ErrCancelled = errors.New("jobs: the job was cancelled")
	// ErrTimeout ends the context of a run that takes longer than its Timeout.
	ErrTimeout = errors.New("jobs: the handler's Timeout is over")
	// ErrHandlerOverdue: handlers ignore the end of their context, and Start has
	// returned without them.
	ErrHandlerOverdue = errors.New("jobs: handlers ignore the end of their context")
	// ErrPoolClosed: db was closed while the worker ran. Its jobs run again, and the context
	// of their handlers has ended with this error.
	ErrPoolClosed = errors.New("jobs: sql: database is closed: close db after Start has returned, not before")
	// ErrPrivileges: the role lacks privileges, or row-level security hides rows from it;
	// the error has the remedies.
	ErrPrivileges = refusal.ErrPrivileges
	// ErrStandby: the server takes no writes.
	ErrStandby = refusal.ErrStandby
	// ErrTransactionPooling: something between this worker and the server gives each
	// transaction another session, so that a session's locks protect nothing.
	ErrTransactionPooling = refusal.ErrTransactionPooling
	// ErrPreparedStatements: behind such a proxy, the driver prepares statements in one
	// session that it executes in the next.
	ErrPreparedStatements = refusal.ErrPreparedStatements
	// ErrTxEnded: the handler of RegisterTx has ended its transaction.
	ErrTxEnded = errors.New("jobs: the handler ended its transaction: return an error to roll it back, nil to commit it")

	// errStopping ends the context of a run that a stop does not wait for any more.
	errStopping = errors.New("jobs: the worker stops (WithShutdownTimeout)")
	// errGone is the failure of a handler that has removed its own job in its transaction.
	errGone = errors.New("in the transaction of the handler the job was not there any more: the handler must leave its row alone (to end the job, return Discard or Fail)")
	// errSilent ends a transaction whose last statements nobody answers.
	errSilent = errors.New("the database does not answer")
	// errGoexit is what runtime.Goexit in a handler becomes.
	errGoexit = errors.New("the handler called runtime.Goexit, which ends its goroutine: FailNow of testing does that")
	// errGoroutine ends a worker in which a goroutine was ended by what it called.
	errGoroutine = errors.New("jobs: what the worker called has ended one of its goroutines with runtime.Goexit: the driver, or a method of an error")
)

// FailedError is returned by [Wait] when the job has ended otherwise than
// completed.
type FailedError struct {
	ID    int64
	State State
	Code  string
	Text  string // of the last error
}

func (e *FailedError) Error() string {
	text := fmt.Sprintf("jobs: job %d has %s", e.ID, e.State)
	if e.State == StateCancelled {
		text = fmt.Sprintf("jobs: job %d was %s", e.ID, e.State)
	}
	if e.Code != "" {
		text += " (" + e.Code + ")"
	}
	if e.Text != "" {
		text += ": " + e.Text
	}
	return errtext.Line(text)
}

// PanicError is what a panic of a handler becomes. Its text names the line of the
// panic.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string {
	return errtext.Line(fmt.Sprintf("the handler panicked%s: %s", errtext.Where(e.Stack), errtext.Panic(e.Value)))
}

// Code is CodePanic.
func (e *PanicError) Code() string { return CodePanic }

// Unwrap gives the panic's value if it was an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return errtext.Sound(err)
}

// recovered makes an error of a panic. The error of f is sound: errors.Is and the
// like call its methods in the worker's goroutines.
func recovered(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return errtext.Sound(f())
}

// explain adds the remedy to the error of a server that takes no writes.
func explain(err error) error {
	if pgdriver.IsStandby(err) && !errors.Is(err, ErrStandby) {
		return errtext.Of(fmt.Errorf("%w: %w", ErrStandby, err))
	}
	return err
}
