package table

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/refusal"
)

var (
	// ErrInvalidConfig reports that NewStore or NewWorker was given an invalid configuration. The
	// error names each problem of it.
	ErrInvalidConfig = refusal.ErrInvalidConfig
	// ErrOutage reports that the database could not be reached for StartLimit.
	ErrOutage = refusal.ErrOutage
	// ErrStandby reports that the server takes no writes.
	ErrStandby = refusal.ErrStandby
	// ErrAlreadyStarted reports a second Start: a Worker starts once.
	ErrAlreadyStarted = errors.New("jobs/table: the worker was started before: make another one with NewWorker")
	// ErrUnfit reports that the table or the view does not fit the worker. The error has the remedy
	// for each finding.
	ErrUnfit = errors.New("jobs/table: the table does not fit")
	// ErrPrivileges reports that the role lacks privileges, or that row-level security hides rows
	// from the role. The error names the remedies.
	ErrPrivileges = refusal.ErrPrivileges
	// ErrPreparedStatements reports a proxy behind which the driver may execute a statement in
	// another session than the one that prepared it.
	ErrPreparedStatements = refusal.ErrPreparedStatements
	// ErrNotFound reports that no row has this ID.
	ErrNotFound = errors.New("jobs/table: no such job")
	// ErrClaimLost ends the context of a run that has lost its job. Either the worker was taken for
	// dead, or the job was queued again. What the run returns has no effect.
	ErrClaimLost = errors.New("jobs/table: this run has lost its job")
	// ErrCanceled ends the context of a run whose row has cancel set.
	ErrCanceled = errors.New("jobs/table: the job was canceled")
	// ErrTimeout ends the context of a run that takes longer than MaximumRuntimePerJob.
	ErrTimeout = errors.New("jobs/table: the time of the run is over (MaximumRuntimePerJob)")
	// ErrHandlerOverdue reports handlers or hooks that ignore the end of their context, or a Scan
	// that does not return. Start has returned without them.
	ErrHandlerOverdue = errors.New("jobs/table: handlers ignore the end of their context: pass ctx on to everything that they wait for, and return when it ends")
	// ErrPoolClosed reports that db was closed while the worker ran. The running jobs run again.
	// Close db after Start has returned.
	ErrPoolClosed = errors.New("jobs/table: db was closed while the worker ran: call Close after Start has returned")
	// ErrUnsettled reports that the database did not answer when the worker stopped. The outcomes
	// of some jobs could not be stored. These jobs stall, and run again.
	ErrUnsettled = errors.New("jobs/table: what became of some jobs could not be stored, they run again")

	// errStopping ends the context of a run that a stop no longer waits for.
	errStopping = errors.New("jobs/table: the worker stops (ShutdownTimeout)")
	// errGoexit is the failure of a handler that calls runtime.Goexit.
	errGoexit = errors.New("the handler called runtime.Goexit, which ends its goroutine: FailNow of testing does that")
	// errGoroutine ends a worker after a call of the driver or of an error's method has ended a
	// goroutine.
	errGoroutine = errors.New("jobs/table: what the worker called has ended one of its goroutines with runtime.Goexit: the driver, or a method of an error")
	// errUncommitted is the failure of a run that called CompleteTx, returned nil and has not
	// committed.
	errUncommitted = errors.New("the handler returned nil, but the transaction of CompleteTx is not committed")
	// errEndedElsewhere reports that the handler returned nil, but the row has another state
	// already.
	errEndedElsewhere = errors.New("the handler returned nil, but the row has another state already")
	// errTwice reports that the view shows a row more than once.
	errTwice = errors.New("the view shows the row more than once: it must join at most one row")
)

// recovered calls f and returns a panic of f as an error. The returned error is sound: the worker's
// goroutines may call its methods, as errors.Is does.
func recovered(of string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = errors.New(errtext.Line(fmt.Sprintf("%s panicked%s: %s", of, errtext.Where(debug.Stack()), errtext.Panic(v))))
		}
	}()
	return errtext.Sound(f())
}

// errHeld reports a row that another transaction holds locked.
var errHeld = errors.New("another transaction holds the row: end it first")
