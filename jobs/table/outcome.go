package table

import (
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/runtime"
)

// NonRetryable returns an error after which a job has failed for good, whatever MaxNumRetries says.
// An error with a method NonRetryable() bool that returns true has the same effect, also if it is
// wrapped.
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

// RequeueAfter is an error for a handler or for Scan. It queues the job again, due in delay. It is
// no failure and does not count.
func RequeueAfter(delay time.Duration) error { return &requeue{max(delay, 0)} }

type requeue struct{ delay time.Duration }

func (r *requeue) Error() string { return fmt.Sprintf("requeued, due in %v", r.delay) }

// end is the outcome of a run that a statement is to store.
type end struct {
	claim
	To       State   `json:"to"`
	Message  *string `json:"message"`
	Delay    *int64  `json:"delay"` // microseconds; nil: due as before
	Requeued bool    `json:"requeued"`
}

// hidden settles a row that the view does not show. The row is queued again, due after growing
// delays. No row is stored with this state.
const hidden State = "hidden"

// unchanged is the answer for a row that a trigger leaves unchanged.
const unchanged State = "unchanged"

// decide returns the outcome of a job whose handler has returned err. cause is why the context of
// the run was ended, nil if it was not. byTx reports whether the handler has called CompleteTx.
//
// The statement may override the outcome. A row with cancel set that has not completed ends as
// canceled. A row with too many failures ends as failed.
func decide(err, cause error, byTx bool) (to State, message *string, delay *int64, requeued bool) {
	switch {
	case err == nil && byTx:
		// If the transaction was committed, the row is completed, and stays completed.
		return StateErrored, text(errUncommitted), nil, false
	case err == nil:
		return StateCompleted, nil, nil, false
	case errors.Is(cause, errStopping), errors.Is(cause, ErrClaimLost):
		return StateQueued, nil, nil, false
	case errors.Is(cause, ErrCanceled):
		return StateCanceled, text(err), nil, false
	}
	var again *requeue
	if errors.As(err, &again) {
		n := min(again.delay, longestDelay).Microseconds()
		return StateQueued, nil, &n, true
	}
	if isNonRetryable(err) {
		return StateFailed, text(err), nil, false
	}
	return StateErrored, text(err), nil, false
}

func text(err error) *string {
	s := errtext.Storable(err)
	return &s
}

// isNonRetryable reports whether err is non-retryable. The method that it calls may be the user's.
func isNonRetryable(err error) (is bool) {
	var says interface{ NonRetryable() bool }
	if errors.As(err, &says) {
		runtime.Aside(func() { is = says.NonRetryable() })
	}
	return is
}
