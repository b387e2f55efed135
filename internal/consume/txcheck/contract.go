// Package txcheck finds out whether a handler ended its transaction, and whether the log
// was reset.
package txcheck

import (
	"context"
	"errors"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/store"
)

// Batch is the last batch that passed its guard. The checkpoint's row shows afterwards
// whether the guard was committed. If the row disagrees with what this worker did, the
// batch's handler ended the transaction. The comparison works with any driver, and whatever
// the handler did next. After a COMMIT AND CHAIN there is a transaction as before.
//
// Another worker's batch may give the row the same revision and position again. The
// transaction id that wrote the row never repeats in one incarnation. After a crash the id
// may repeat, since the crash loses what is not on disk. Then only the time of writing
// tells the two rows apart.
type Batch struct {
	Work
	After progress.Version // the version of the row that the guard wrote

	Transaction string // its id, with the epoch

	End    Ending
	Err    error
	Seen   bool                   // the driver or the database has shown that the handler ended it
	Intact bool                   // the driver has shown that the handler did not end it
	Fault  []store.PersistedEvent // the events of the call that ended the transaction; nil: unknown

	compared bool              // the row was loaded since
	prepared progress.Prepared // the prepared transaction, for handlerPrepared
}

// Work is what a batch does.
type Work struct {
	Before   progress.Version       // of the row
	From, To int64                  // the checkpoint before the batch, and at its end
	Head     int64                  // the highest visible position that the worker had seen
	Token    string                 // of the incarnation
	Events   []store.PersistedEvent // that the handler gets
	Retried  int64                  // the position of the dead letter that the batch retries; 0: none
	Undo     Undo
}

// Undo sets a batch's progress back.
type Undo interface {
	// Recount counts the missing positions up to through again, where that is needed
	// before Repair.
	Recount(ctx context.Context, q store.Querier, token string, through int64) error
	// Repair returns the progress as if the batch had ended at position through. If through
	// is 0, it is the progress before the batch.
	Repair(through int64) progress.Repair
	// Release drops the data that is not needed after the commit.
	Release()
}

// Ending is how this worker ended a batch's transaction.
type Ending int

const (
	Abandoned Ending = iota // the worker committed nothing
	Unsure                  // the worker sent a COMMIT and lost the answer
	Done                    // the worker committed
)

// verdict is what a batch's handler did to the transaction.
type verdict int

const (
	txIntact verdict = iota
	// handlerCommitted: the checkpoint is at the batch's end. The events after the
	// handler's commit are lost unless the checkpoint is set back.
	handlerCommitted
	// handlerRolledBack: the whole batch was rolled back.
	handlerRolledBack
	// handlerChained: the guard was rolled back. The following transaction was committed,
	// and its events will be handled again.
	handlerChained
	// handlerPrepared: the guard is part of a prepared transaction.
	handlerPrepared
	// handlerOvertaken: the handler committed the batch, and another worker or an operator
	// has moved the consumer since. The checkpoint cannot be set back.
	handlerOvertaken
	// handlerRepaired: the handler committed, and this worker has already set the
	// checkpoint back. It lost the answer of that statement.
	handlerRepaired
	// handlerUnknown: the outcome cannot be determined.
	handlerUnknown
)

// ErrOutcomeUnknown ends a worker whose handler has perhaps ended its transaction.
var ErrOutcomeUnknown = errors.New("worker: an outage hides whether a handler ended the batch's transaction")

// ErrMismatch reports a row that perhaps only a handler can have caused.
var ErrMismatch = errors.New("worker: the checkpoint is not as the last batch should have left it")

// Sent records the outcome of the worker's COMMIT. It runs before any user code, which may
// end the goroutine.
func (b *Batch) Sent(err error) {
	switch {
	case err == nil:
		b.End = Done
		b.Events = nil
		b.Undo.Release()
	case pgdriver.IsNotSent(err), pgdriver.IsRefused(err):
		b.End = Abandoned
	default:
		b.End = Unsure
	}
}

// judge compares the loaded row with what this worker knows of the batch. A row as the
// guard wrote it proves the guard's commit, in every incarnation. A row as before the guard
// proves a rollback only in the same incarnation: a crash may have lost a commit.
func (b *Batch) judge(now *progress.State) verdict {
	switch {
	case b == nil:
		return txIntact
	case b.End == Abandoned && now.Version == b.After:
		return handlerCommitted
	case now.Token == b.Token && b.End == Done && now.Version == b.Before:
		return handlerChained
	case b.Seen && now.Version == b.Before:
		return handlerRolledBack
	case b.Seen:
		return handlerUnknown
	}
	return txIntact
}

// IsOpen reports whether the row may show more than this worker knows.
func (b *Batch) IsOpen() bool { return b != nil && b.End == Abandoned && !b.compared }

// Compare compares the last batch with the loaded row. It reports whether the row shows
// that the handler ended the transaction, or whether only the transaction's status can show
// that.
func (b *Batch) Compare(now *progress.State) bool {
	if b == nil {
		return false
	}
	if b.IsOpen() && b.movedOn(now) {
		return true
	}
	b.compared = now.Token == b.Token
	b.Seen = b.judge(now) != txIntact
	return b.Seen
}

// movedOn reports whether another worker or an operator has moved the consumer since, in
// the same incarnation. Then the row no longer shows the batch's outcome.
func (b *Batch) movedOn(now *progress.State) bool {
	return now.Token == b.Token && now.Version != b.Before && now.Version != b.After
}
