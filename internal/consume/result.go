package consume

import (
	"time"

	"github.com/pgfrontier/worker/internal/consume/failure"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/store"
)

// outcome is the result of one iteration of the loop.
type outcome int

const (
	// idle: there is no work until the frontier moves, or another worker or an operator
	// changes the progress.
	idle outcome = iota
	// again: the next iteration begins at once.
	again
	// passedOver: the work that was read changes nothing.
	passedOver
	committed
	// commitDeferred: no event of the work belongs to this unit, and the commit can wait.
	commitDeferred
	// overtaken: another worker or an operator has moved the progress. Or the guard found
	// another progress, assignment or incarnation than expected. The progress is loaded
	// again. The error is store.ErrIncarnation if another incarnation answers.
	overtaken
	// The failures follow, in the order of failure.Kind.
	handlerFailed = overtaken + outcome(failure.Handler)
	conflicted    = overtaken + outcome(failure.Conflict)
	disturbed     = overtaken + outcome(failure.Database)
	lost          = overtaken + outcome(failure.Loss)
	forbidden     = overtaken + outcome(failure.Ended)
)

// outcomeOf returns the outcome of a batch that ended with a failure of a kind, or with none.
func outcomeOf(k failure.Kind) outcome {
	if k == failure.None {
		return committed
	}
	return overtaken + outcome(k)
}

// kind returns the kind of a failure.
func (o outcome) kind() failure.Kind { return failure.Kind(max(o-overtaken, 0)) }

// result is an outcome with its details.
type result struct {
	outcome outcome
	err     error
	work    *work                 // nil: no work was read
	at      *store.PersistedEvent // the event that was being handled at the failure
	moved   progress.Moved        // the progress's move, after a commit
	left    error                 // the handler left the connection unusable
	many    bool                  // the batch had too many events for its time, see batch.Result
	fatal   error                 // ends the worker; nothing is to be settled
	waited  bool                  // a time limit of the server ended the guard's wait for the row
	halved  bool                  // the page could not be read, and the next page has half its size
	began   time.Time             // when the iteration began
}

// failed reports whether the iteration failed.
func (r result) failed() bool { return r.outcome > overtaken }

// isOurs reports whether a statement of the worker failed, and not a handler.
func (r result) isOurs() bool {
	return r.outcome == disturbed || r.outcome == lost || r.outcome == overtaken && r.err != nil
}
