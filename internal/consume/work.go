package consume

import (
	"fmt"
	"slices"
	"time"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/consume/failure"
	"github.com/pgfrontier/worker/internal/delivered"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/reader"
	"github.com/pgfrontier/worker/internal/receipt"
	"github.com/pgfrontier/worker/store"
)

// work is one batch: the page that was read, and its changes of the consumer's progress. A
// loop reads it, plans it, runs it, and settles it.
type work struct {
	reader.Page
	under   *frontier.Value // published before the read
	from    progress.State  // the progress before the batch
	head    int64           // highest visible position that this worker has seen
	retried *progress.Retry // the dead letter whose event Events is; nil: new and late events

	orders          map[int64]progress.Order // of Events, by position; nil: none can become a dead letter
	haveDeadLetters map[progress.Order]bool  // the orders with dead letters; nil: none has any, and none gets any
	replayed        map[progress.Order]bool  // the orders whose dead letters are replayed

	advance     progress.Advance
	deadLetters []progress.DeadLetter // events that become dead letters
	joined      int                   // aggregates or keys without dead letters before
	shortened   bool                  // the batch ended before its last event, since its time was short

	handled []receipt.Event // that the receipt is to have, copied before a handler may change Events

	last struct { // the last of Events, copied before a handler may change it
		position int64
		is       reader.Fingerprint
	}
}

// visible returns the highest visible position that this worker has seen.
// WithStaleGapHarborLag keeps v.Safe below it.
func visible(f *frontier.Frontier, v *frontier.Value) int64 {
	head, _ := f.Head()
	return max(head, v.Safe)
}

// recordLast records the last event.
func (w *work) recordLast() {
	if n := len(w.Events); n > 0 {
		w.last.position, w.last.is = w.Events[n-1].GlobalPosition, reader.FingerprintOf(&w.Events[n-1])
	}
}

// plan decides what passing the page changes, with at most maxOpen open ranges. If there is
// no room for a range, plan shortens the page and returns blocked.
func (w *work) plan(maxOpen int) (blocked bool) {
	crossing, blocked := w.Cross(w.under, maxOpen)
	a := progress.Advance{To: crossing.To, Head: w.head, Token: w.under.Token}
	void := crossing.Void
	if w.Void.Count > 0 {
		void = w.Void
	}
	if void.Count > 0 {
		a.Marks = append(a.Marks, progress.Mark{Range: void.Range, Missing: void.Count, State: progress.Void})
	}
	a.Mark(progress.Open, crossing.Opened, nil)
	for _, closed := range crossing.Closed {
		o := w.from.Open[closed.Index]
		a.Gone = append(a.Gone, o.ID)
		a.Mark(progress.Late, closed.Late, &o)
		a.Mark(progress.Void, closed.Void, &o)
		a.Mark(progress.Open, closed.Remains, &o)
	}
	w.advance = a
	return blocked
}

// poison is an event that has failed MaxConsecutiveFailures times, with the decision about
// the event and its consumer.
type poison struct {
	policy   FailurePolicy
	position int64
	attempts int
	err      error
	revision int64 // revision of the progress for which the event was skipped; another revision clears the poison
}

// keeps reports whether the event is kept: the consumer is paused, or the worker ends. No event is
// kept if p is nil.
func (p *poison) keeps() bool { return p != nil && p.policy != FailDeadLetter }

// setAside moves the events that become dead letters out of Events. These are the poison
// event, and every event whose aggregate or key already has dead letters.
func (w *work) setAside(p *poison, text func(error) string) {
	have := w.haveDeadLetters
	if have == nil {
		return
	}
	kept := w.Events[:0]
	for _, e := range w.Events {
		l := deadLetterOf(e, w.orders)
		switch {
		case p != nil && e.GlobalPosition == p.position:
			l.Error, l.Attempts = text(p.err), p.attempts
		case w.replayed[l.Order]:
			l.Replay = true
		case !have[l.Order]:
			kept = append(kept, e)
			continue
		}
		if !have[l.Order] {
			have[l.Order] = true
			w.joined++
		}
		w.deadLetters = append(w.deadLetters, l)
	}
	w.Events = kept
}

// planDelivered decides how the batch changes the delivered ranges of the consumer.
func (w *work) planDelivered() {
	var retried, aside []store.Range
	if w.retried != nil && w.retried.Err == nil {
		retried = append(retried, at(w.retried.Position))
	}
	for _, l := range w.deadLetters {
		aside = append(aside, at(l.Position))
	}
	w.advance.Effects = w.advance.Handles(w.from.Position, w.from.Effects, retried, aside)
}

// deliveredThrough returns the delivered ranges if the work ends at through. A retried dead
// letter does not count as handled.
func (w *work) deliveredThrough(through int64) *delivered.Borders {
	if w.retried == nil {
		w.deadLetters = slices.DeleteFunc(slices.Clone(w.deadLetters), func(l progress.DeadLetter) bool { return l.Position > through })
		w.planDelivered()
		if w.advance.Effects != nil {
			return w.advance.Effects
		}
	}
	return &w.from.Effects
}

// planReceipt decides how the batch changes the receipt of the consumer if it handles the events up
// to through. A retried dead letter counts if it is handled for the first time.
func (w *work) planReceipt(through int64) {
	if w.handled == nil {
		w.handled = make([]receipt.Event, len(w.Events))
		for i := range w.Events {
			w.handled[i].Position, w.handled[i].ID = w.Events[i].GlobalPosition, w.Events[i].EventID
		}
		if w.retried != nil && (w.retried.Err != nil || w.retried.Received) {
			w.handled = w.handled[:0]
		}
	}
	n := 0
	for n < len(w.handled) && w.handled[n].Position <= through {
		n++
	}
	region, rows := w.from.Receipt.Pass(w.from.Position, w.advance.To, w.handled[:n])
	w.advance.Receipt = progress.Receipt{Region: &region, Rows: rows}
}

func at(position int64) store.Range { return store.Range{First: position, Last: position} }

// isEmpty reports whether there is nothing to commit.
func (w *work) isEmpty() bool { return w.advance.Empty(w.from.Position) }

// late counts the events behind the checkpoint, which come first.
func (w *work) late() (n int) {
	for n < len(w.Events) && w.Events[n].GlobalPosition <= w.Positions.Checkpoint {
		n++
	}
	return n
}

// release drops the data that is not needed after the commit.
func (w *work) release() {
	w.Page, w.orders, w.deadLetters, w.from.Open, w.handled = reader.Page{}, nil, nil, nil, nil
}

// index returns the index of an event in the batch, or below 0 if the batch lacks it.
func (w *work) index(at *store.PersistedEvent) int {
	if at == nil {
		return -1
	}
	return slices.IndexFunc(w.Events, func(e store.PersistedEvent) bool { return e.GlobalPosition == at.GlobalPosition })
}

// errTooManyOpen is the reason why a unit waits for open ranges to close.
type errTooManyOpen struct {
	unit string
	max  int
	at   int64
}

func (e errTooManyOpen) Error() string {
	return fmt.Sprintf("worker: consumer %q waits at position %d: it has passed %d ranges of positions in doubt, as many as WithMaxOpenRanges allows; end the transactions that stay open (Status lists them), or raise the option", e.unit, e.at, e.max)
}

// deadLetterOf returns the dead letter of an event. Its order is the aggregate if orders
// has no entry for the event.
func deadLetterOf(e store.PersistedEvent, orders map[int64]progress.Order) progress.DeadLetter {
	o, known := orders[e.GlobalPosition]
	if !known {
		o = progress.Order{Type: e.AggregateType, ID: e.AggregateID}
	}
	return progress.DeadLetter{Order: o, Type: e.AggregateType, ID: e.AggregateID, Position: e.GlobalPosition, EventID: e.EventID, EventType: e.EventType}
}

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
