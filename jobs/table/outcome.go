package table

import (
	"errors"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/runtime"
)

// end is what a statement is to make of a run.
type end struct {
	claim
	To       State   `json:"to"`
	Message  *string `json:"message"`
	Delay    *int64  `json:"delay"` // microseconds; nil: due as before
	Requeued bool    `json:"requeued"`
}

// hidden is where a row goes that the view does not show: it is queued again, due
// later and later. No row has this state.
const hidden State = "hidden"

// unchanged is what the answer says of a row that a trigger leaves as it is.
const unchanged State = "unchanged"

// decide says what becomes of a job whose handler has returned err. cause is why its
// context was ended, nil if it was not; byTx is whether it has called CompleteTx.
//
// The statement has the last word: it ends a job as canceled whose row says so and
// that has not completed, and as failed one that has failed too often.
func decide(err, cause error, byTx bool) (to State, message *string, delay *int64, requeued bool) {
	switch {
	case err == nil && byTx:
		// It is completed if the transaction was committed, and then stays that.
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

// isNonRetryable asks the error, whose method is the user's.
func isNonRetryable(err error) (is bool) {
	var says interface{ NonRetryable() bool }
	if errors.As(err, &says) {
		runtime.Aside(func() { is = says.NonRetryable() })
	}
	return is
}
