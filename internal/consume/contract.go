package consume

import (
	"errors"

	"github.com/pgfrontier/worker/internal/consume/batch"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/store"
)

// lastBatch is the last batch that passed its guard. The checkpoint's row shows afterwards
// whether the guard was committed. If the row disagrees with what this worker did, the
// batch's handler ended the transaction. The comparison works with any driver, and whatever
// the handler did next. After a COMMIT AND CHAIN there is a transaction as before.
//
// Another worker's batch may give the row the same revision and position again. The
// transaction id that wrote the row never repeats in one incarnation. After a crash the id
// may repeat, since the crash loses what is not on disk. Then only the time of writing
// tells the two rows apart.
type lastBatch struct {
	work  work
	after progress.Version // the version of the row that the guard wrote

	transaction string // its id, with the epoch

	end      ending
	err      error
	seen     bool                   // the driver or the database has shown that the handler ended it
	intact   bool                   // the driver has shown that the handler did not end it
	fault    []store.PersistedEvent // the events of the call that ended the transaction; nil: unknown
	compared bool                   // the row was loaded since
	prepared progress.Prepared      // the prepared transaction, for handlerPrepared
}

// ending is how this worker ended a batch's transaction.
type ending int

const (
	abandoned ending = iota // the worker committed nothing
	unsure                  // the worker sent a COMMIT and lost the answer
	done                    // the worker committed
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

// errCheckpointMismatch reports a row that perhaps only a handler can have caused.
var errCheckpointMismatch = errors.New("worker: the checkpoint is not as the last batch should have left it")

// sent records the outcome of the worker's COMMIT. It runs before any user code, which may
// end the goroutine.
func (b *lastBatch) sent(err error) {
	switch {
	case err == nil:
		b.end = done
		b.work.release()
	case pgdriver.IsNotSent(err), pgdriver.IsRefused(err):
		b.end = abandoned
	default:
		b.end = unsure
	}
}

// ended records how the batch failed, if it failed.
func (b *lastBatch) ended(r result, t *batch.Tx) {
	b.err, b.fault, b.intact = r.err, t.Fault, t.Intact
	b.seen = r.outcome == forbidden
}

// judge compares the loaded row with what this worker knows of the batch. A row as the
// guard wrote it proves the guard's commit, in every incarnation. A row as before the guard
// proves a rollback only in the same incarnation: a crash may have lost a commit.
func (b *lastBatch) judge(now *progress.State) verdict {
	switch {
	case b == nil:
		return txIntact
	case b.end == abandoned && now.Version == b.after:
		return handlerCommitted
	case now.Token == b.work.advance.Token && b.end == done && now.Version == b.work.from.Version:
		return handlerChained
	case b.seen && now.Version == b.work.from.Version:
		return handlerRolledBack
	case b.seen:
		return handlerUnknown
	}
	return txIntact
}

// isOpen reports whether the row may show more than this worker knows.
func (b *lastBatch) isOpen() bool { return b != nil && b.end == abandoned && !b.compared }

// compare compares the last batch with the loaded row. It reports whether the row shows
// that the handler ended the transaction, or whether only the transaction's status can show
// that.
func (b *lastBatch) compare(now *progress.State) bool {
	if b == nil {
		return false
	}
	if b.isOpen() && b.movedOn(now) {
		return true
	}
	b.compared = now.Token == b.work.advance.Token
	b.seen = b.judge(now) != txIntact
	return b.seen
}

// movedOn reports whether another worker or an operator has moved the consumer since, in
// the same incarnation. Then the row no longer shows the batch's outcome.
func (b *lastBatch) movedOn(now *progress.State) bool {
	return now.Token == b.work.advance.Token && now.Version != b.work.from.Version && now.Version != b.after
}
