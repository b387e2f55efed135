package consume

import (
	"errors"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/store"
)

// lastBatch is the last batch whose guard let it through. The checkpoint's row
// shows afterwards whether the guard was committed. If that is not what this
// worker did, the batch's handler ended the transaction. This shows with any
// driver, and whatever the handler did next: after a COMMIT AND CHAIN there is
// a transaction as before.
//
// Another worker's batch may bring a revision and a place of the row again. The
// transaction that wrote the row never comes again in one incarnation. After a
// crash it may: that takes back what is not on disk. Only the time of writing
// tells the two apart then.
type lastBatch struct {
	work  work
	after progress.Version // of the row, as its guard left it

	transaction string // its id, with the epoch

	end      ending
	err      error
	seen     bool                   // the driver, or the database, has shown that the handler ended it
	intact   bool                   // the driver has shown that it did not
	fault    []store.PersistedEvent // of the call of the handler in which it did; nil: not known
	compared bool                   // the row was loaded since
	prepared progress.Prepared      // what it left, for handlerPrepared
}

// ending is how this worker ended a batch's transaction.
type ending int

const (
	abandoned ending = iota // it committed nothing
	unsure                  // it sent a COMMIT and lost the answer
	done                    // it committed
)

// verdict says what a batch's handler did to the transaction.
type verdict int

const (
	innocent verdict = iota
	// handlerCommitted: the checkpoint stands at the batch's end. The events
	// behind the handler's commit are lost unless it is set back.
	handlerCommitted
	// handlerRolledBack: nothing of the batch has happened.
	handlerRolledBack
	// handlerChained: the guard was rolled back. What followed it was
	// committed, and will be done again.
	handlerChained
	// handlerPrepared: the guard lives on in a prepared transaction.
	handlerPrepared
	// handlerOvertaken: the handler committed the batch, and somebody else has
	// moved the consumer since. There is nothing to set back.
	handlerOvertaken
	// handlerRepaired: the handler committed, and this worker has set the
	// checkpoint back already. It lost the answer.
	handlerRepaired
	// handlerUnknown: nobody can tell.
	handlerUnknown
)

// errRowTells reports that the row shows what perhaps only a handler has done.
var errRowTells = errors.New("worker: the checkpoint is not as the last batch should have left it")

// sent takes note of what became of our COMMIT, before anything of the user
// runs again: that may end the goroutine.
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

// ended takes note of how the batch failed, if it did.
func (b *lastBatch) ended(r result, t *transaction) {
	b.err, b.fault, b.intact = r.err, t.fault, t.intact
	b.seen = r.outcome == forbidden
}

// judge compares the row with what this worker knows of the batch. A row as the
// guard wrote it proves its commit, in each incarnation. The row before it proves
// nothing in another: a crash may have taken back a commit.
func (b *lastBatch) judge(now *progress.State) verdict {
	switch {
	case b == nil:
		return innocent
	case b.end == abandoned && now.Version == b.after:
		return handlerCommitted
	case now.Token == b.work.advance.Token && b.end == done && now.Version == b.work.from.Version:
		return handlerChained
	case b.seen && now.Version == b.work.from.Version:
		return handlerRolledBack
	case b.seen:
		return handlerUnknown
	}
	return innocent
}

// isOpen reports whether the row may show more than this worker knows.
func (b *lastBatch) isOpen() bool { return b != nil && b.end == abandoned && !b.compared }

// compare takes note of the row. It reports whether that shows that the handler
// ended the transaction, or whether only the fate of the transaction can.
func (b *lastBatch) compare(now *progress.State) bool {
	if b == nil {
		return false
	}
	if b.isOpen() && b.movedOn(now) {
		return true
	}
	b.compared = now.Token == b.work.advance.Token
	b.seen = b.judge(now) != innocent
	return b.seen
}

// movedOn reports whether somebody else has moved the consumer since, in the
// same incarnation. The row does not show any more what became of the batch.
func (b *lastBatch) movedOn(now *progress.State) bool {
	return now.Token == b.work.advance.Token && now.Version != b.work.from.Version && now.Version != b.after
}
