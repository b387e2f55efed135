package consume

import (
	"context"
	"errors"
	"time"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/consume/arrival"
	"github.com/pgfrontier/worker/internal/consume/batch"
	"github.com/pgfrontier/worker/internal/consume/failure"
	"github.com/pgfrontier/worker/internal/consume/partitions"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/reader"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

// agenda is what a loop knows of its unit's progress and failures. It decides what the loop
// reads next, and when. It does no I/O.
type agenda struct {
	cfg     *Config
	unit    *unit
	awaited *arrival.Callers

	progress    *progress.State // nil: it must be loaded
	polled      *frontier.Value // the frontier's value up to which everything was read; nil: none
	reloadedFor *frontier.Value // the frontier's value below the checkpoint for which the progress was already reloaded

	tally            failure.Tally   // failures of new and late events
	again            failure.Tally   // failures of the dead letter that is tried again
	poison           *poison         // the event that failed too often; nil: none
	refused          *progress.Retry // the dead letter whose retry has just failed; nil: none
	triedDeadLetter  bool            // the last iteration tried a dead letter, so new events come next
	atOpenRangeLimit bool            // the unit waits for open ranges to close, and the observers know
	suspects         int             // one of so many next events cannot be read; 0: none is known

	rescaling partitions.Rescaling
	deferred  batch.Deferred
	pace      batch.Pace
}

// forget drops the loaded progress.
func (a *agenda) forget() {
	a.progress = nil
	a.polled = nil
	a.deferred = batch.Deferred{}
}

// outdated reports whether the progress must be loaded again before v is used.
func (a *agenda) outdated(v *frontier.Value) bool {
	switch {
	case a.progress == nil:
		return false
	case a.progress.Token != v.Token:
		// The server crashed or a backup was restored since. Either may have set the
		// progress back, and counted its revision up again.
		return true
	case v.Safe < a.progress.Position && v != a.reloadedFor:
		// Another worker's frontier was further, or the sequence was set back.
		a.reloadedFor = v
		return true
	}
	return false
}

// hasWork reports whether the unit has new work, or an operator has requested some.
func (a *agenda) hasWork(v *frontier.Value) bool {
	return a.progress.Paused == nil && (a.progress.Retry || a.hasNewPositions(v) || a.deferredDue())
}

// hasNewPositions reports whether there are new positions, or changes of open ones.
func (a *agenda) hasNewPositions(v *frontier.Value) bool {
	return a.polled != v && (v.Safe > a.at() || len(a.progress.Open) > 0)
}

// deadLetterNext reports whether a dead letter is tried before new events. Dead letters and
// new events alternate, so neither waits for more than one batch of the other.
func (a *agenda) deadLetterNext() bool {
	return a.progress != nil && a.progress.Retry && !a.triedDeadLetter
}

// place returns where the unit continues, and how far it may read.
func (a *agenda) place() reader.Place {
	b := a.tally.Bisection
	at := reader.Place{Position: a.at(), Limit: b.Size(a.batchSize()), Bound: b.UpTo(reader.Unbounded)}
	if upTo, bounded := a.rescaling.Bound(); bounded {
		at.Bound = min(at.Bound, upTo)
	}
	if a.poison.keeps() {
		at.Limit, at.Bound = a.cfg.BatchSize, min(at.Bound, a.poison.position-1) // no event of the unit itself lies between
	}
	if a.suspects > 0 {
		at.Limit, at.Exact = min(at.Limit, max(1, a.suspects/2)), true
	}
	for _, o := range a.progress.Open {
		at.Open = append(at.Open, o.Range)
	}
	return at
}

// workOf returns the work for a page that was read under v. head is the highest visible
// position that this worker has seen.
func (a *agenda) workOf(p reader.Page, v *frontier.Value, head int64) *work {
	return &work{Page: p, under: v, from: *a.progress, head: head}
}

// describe describes a batch that is about to begin.
func (a *agenda) describe(w *work) *observe.Batch {
	b := &observe.Batch{Consumer: a.unit.name, Attempt: a.tallyOf(w.retried).Attempt(), Events: len(w.Events), From: w.from.Position, To: w.advance.To, Read: w.Took}
	if n := len(w.Events); n > 0 {
		b.First, b.Last = w.Events[0].GlobalPosition, w.Events[n-1].GlobalPosition
	}
	b.Late = w.late()
	return b
}

// suspect records that one of the next events cannot be read. The next page has at most
// half of the suspected events. So the events before it are handled, and in the end the
// event is read alone. suspect reports whether the next page is smaller.
func (a *agenda) suspect(ctx context.Context, asked int, more bool, err error) (halved bool) {
	switch {
	case err == nil && !more:
		a.suspects = 0
	case err == nil:
		a.suspects = max(0, a.suspects-asked)
	case ofEvents(ctx, err):
		a.suspects, halved = asked, asked > 1
	}
	return halved
}

// batchSize is the most events of the next batch.
func (a *agenda) batchSize() int { return a.pace.Size(a.cfg.BatchSize, a.cfg.BatchTimeout) }

// paced reports whether the handler's time makes batches smaller than BatchSize.
func (a *agenda) paced() bool { return a.batchSize() < a.cfg.BatchSize }

// othersBetween reports whether other units' events may lie between a checkpoint and a
// position. SkipEvent skips the next event of all units. So the checkpoint must end just
// before the poison event.
func (a *agenda) othersBetween(checkpoint, position int64) bool {
	return (a.unit.isPart() || len(a.unit.types) > 0) && checkpoint < position-1
}

// tallyOf returns the tally of a batch: the tally of the dead letter if the batch retries
// one.
func (a *agenda) tallyOf(r *progress.Retry) *failure.Tally {
	if r != nil {
		return &a.again
	}
	return &a.tally
}

// disturbed reports whether the last failure was the database's.
func (a *agenda) disturbed() bool { return a.tally.Disturbed+a.again.Disturbed > 0 }

// gather returns the pause after a batch. If events arrive faster than they are handled,
// fewer and larger batches cost the database less. On a quiet log an event does not wait:
// no event came during the batch before. A part waits after each batch, since the next
// event seldom belongs to it.
func (a *agenda) gather(o outcome, v *frontier.Value) time.Duration {
	if o == committed && a.unit.isPart() {
		return batch.GatheringOf(a.unit.slots)
	}
	before := a.polled
	if before == nil || v.Token != before.Token || v.Safe <= before.Safe {
		return 0
	}
	return batch.Gathering
}

// at returns the position where the unit continues: its checkpoint, or the deferred move's
// end.
func (a *agenda) at() int64 { return max(a.progress.Position, a.deferred.UpTo) }

// deferCommit defers the commit of a page without events of this unit, and reports whether
// it did. It does not defer if a caller waits for a position that the page passes, or if
// parts are to be merged. It does not defer either while a failing or unreadable event is
// narrowed down: SkipEvent relies on the checkpoint before that event.
func (a *agenda) deferCommit(w *work) bool {
	to := &w.advance
	switch {
	case !a.unit.isPart(), len(w.Events)+len(w.deadLetters)+len(to.Marks)+len(to.Gone)+len(w.from.Open) > 0, w.retried != nil,
		a.tally.Bisection.Active(), a.poison != nil, a.suspects > 0, a.rescaling.Merges(), a.deferredDue(), a.isWaitedFor(to.To):
		return false
	}
	if a.deferred.UpTo == 0 {
		a.deferred.Since = time.Now()
	}
	a.deferred.UpTo = to.To
	if w.Full {
		a.polled = nil
	}
	return true
}

// deferredDue reports whether the deferred move must be committed: its time has come, or
// a caller waits for it.
func (a *agenda) deferredDue() bool {
	return a.deferred.UpTo > a.progress.Position &&
		(!time.Now().Before(a.deferred.Due(a.unit.slots)) || a.isWaitedFor(a.deferred.UpTo))
}

// nextCheck returns when a waiting loop must continue without a signal. It must check the
// wanted layout again, or commit a deferred move. ok is false if it need not.
func (a *agenda) nextCheck() (at time.Time, ok bool) {
	at = a.rescaling.Due()
	if a.deferred.UpTo > 0 {
		if due := a.deferred.Due(a.unit.slots); at.IsZero() || due.Before(at) {
			at = due
		}
	}
	return at, !at.IsZero()
}

// unready reports whether the unit is paused or failing, so that no other part waits for
// it.
func (a *agenda) unready() bool {
	t := &a.tally
	return a.progress.Paused != nil || t.Failures > 0 || t.Disturbed > 0 || t.Bisection.Active() || a.poison != nil || a.atOpenRangeLimit
}

// isWaitedFor reports whether a caller waits for a position above the checkpoint and up to
// upTo.
func (a *agenda) isWaitedFor(upTo int64) bool {
	return a.awaited.IsWaitedFor(a.unit.consumerName, a.progress.Position, upTo)
}

// ofEvents reports whether a read failed because of its events, as far as that is known.
func ofEvents(ctx context.Context, err error) bool {
	return ctx.Err() == nil && !errors.Is(err, store.ErrIncarnation) && !pgdriver.IsConnectionLoss(err)
}
