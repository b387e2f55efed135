package table

import (
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/refusal"
)

var (
	// ErrInvalidConfig: what NewStore or NewWorker was given cannot work; the error
	// names all that is wrong.
	ErrInvalidConfig = refusal.ErrInvalidConfig
	// ErrOutage: the database could not be reached for StartLimit.
	ErrOutage = refusal.ErrOutage
	// ErrStandby: the server takes no writes.
	ErrStandby = refusal.ErrStandby
	// ErrAlreadyStarted: a Worker starts once.
	ErrAlreadyStarted = errors.New("jobs/table: the worker was started before: make another one with NewWorker")
	// ErrUnfit: the table or the view is not as a worker needs it; the error says
	// what to do about each finding, each in a line of its own.
	ErrUnfit = errors.New("jobs/table: the table does not fit")
	// ErrPrivileges: the role lacks privileges, or row-level security hides rows from it;
	// the error has the remedies.
	ErrPrivileges = refusal.ErrPrivileges
	// ErrPreparedStatements: the driver prepares statements in one session that it
	// executes in the next.
	ErrPreparedStatements = refusal.ErrPreparedStatements
	// ErrNotFound: no row has this id.
	ErrNotFound = errors.New("jobs/table: no such job")
	// ErrClaimLost ends the context of a run whose job is not this worker's any more: the
	// worker was taken for dead, or somebody has queued the job again. What the run
	// returns is of no effect.
	ErrClaimLost = errors.New("jobs/table: this run has lost its job")
	// ErrCanceled ends the context of a run whose row has cancel set.
	ErrCanceled = errors.New("jobs/table: the job was canceled")
	// ErrTimeout ends the context of a run that takes longer than
	// MaximumRuntimePerJob.
	ErrTimeout = errors.New("jobs/table: the time of the run is over (MaximumRuntimePerJob)")
	// ErrHandlerOverdue: handlers or hooks ignore the end of their context, or a Scan does
	// not return, and Start has returned without them.
	ErrHandlerOverdue = errors.New("jobs/table: handlers ignore the end of their context")
	// ErrPoolClosed: somebody has called Close on the db of the store. Jobs that ran then
	// run again. Call it after Start has returned.
	ErrPoolClosed = errors.New("jobs/table: db was closed while the worker ran: call Close after Start has returned")
	// ErrUnsettled: a stop has not waited for the database to answer, and it does not
	// know what became of some jobs. They stall, and run again.
	ErrUnsettled = errors.New("jobs/table: what became of some jobs could not be stored, they run again")

	// errStopping ends the context of a run that a stop does not wait for any more.
	errStopping = errors.New("jobs/table: the worker stops (ShutdownTimeout)")
	// errGoexit is what runtime.Goexit in a handler becomes.
	errGoexit = errors.New("the handler called runtime.Goexit, which ends its goroutine: FailNow of testing does that")
	// errGoroutine ends a worker in which a goroutine was ended by what it called.
	errGoroutine = errors.New("jobs/table: what the worker called has ended one of its goroutines with runtime.Goexit: the driver, or a method of an error")
	// errUncommitted is a run that returned nil without having committed its CompleteTx.
	errUncommitted = errors.New("the handler returned nil, but the transaction of CompleteTx is not committed")
	// errEndedElsewhere is a job that has completed here, and has another state by then.
	errEndedElsewhere = errors.New("the handler returned nil, but somebody else has changed the state of the row")
	// errTwice is a row that the view shows more than once.
	errTwice = errors.New("the view shows the row more than once: it must join at most one row")
)

// NonRetryable makes an error after which a job has failed for good, whatever
// MaxNumRetries says. Any error does that which has, or wraps one that has, a method
// NonRetryable() bool that returns true.
func NonRetryable(err error) error { return &nonRetryable{err} }

type nonRetryable struct{ err error }

func (e *nonRetryable) Error() string {
	if e.err == nil {
		return "the job has failed"
	}
	return errtext.Of(e.err).Error()
}

func (e *nonRetryable) Unwrap() error { return e.err }

func (e *nonRetryable) NonRetryable() bool { return true }

// RequeueAfter, as the error of a handler or of Scan, queues the job again, due in this
// time. It is no failure and does not count.
func RequeueAfter(delay time.Duration) error { return &requeue{max(delay, 0)} }

type requeue struct{ delay time.Duration }

func (r *requeue) Error() string { return fmt.Sprintf("requeued, due in %v", r.delay) }

// recovered makes an error of a panic. The error of f is sound: errors.Is and the
// like call its methods in the worker's goroutines.
func recovered(of string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = errors.New(errtext.Line(fmt.Sprintf("%s panicked%s: %s", of, errtext.Where(debug.Stack()), errtext.Panic(v))))
		}
	}()
	return errtext.Sound(f())
}
