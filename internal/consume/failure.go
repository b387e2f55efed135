package consume

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/consume/failure"
	"github.com/pgfrontier/worker/internal/consume/lockwatch"
	"github.com/pgfrontier/worker/internal/consume/partitions"
	"github.com/pgfrontier/worker/internal/consume/txcheck"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/observe"
)

// failureLimits returns the options that decide what follows from a failure.
func (c *Config) failureLimits() *failure.Limits {
	return &failure.Limits{Attempts: c.MaxConsecutiveFailures, Stop: c.FailurePolicy == FailStop, RetryLimit: c.RetryLimit, Pause: c.PollInterval, MaxPause: c.MaxPollInterval}
}

// failureActions carries out what follows from the failures of a loop's unit.
type failureActions struct {
	statements
	agenda      *agenda
	deadLetters *deadLetters
}

// after returns the pause after a failed iteration, or the error that ends the
// worker.
func (f *failureActions) after(intake context.Context, r result) (pause time.Duration, fatal error) {
	o := failure.Failure{Kind: r.outcome.kind(), Random: rand.Float64()}
	var retried *progress.Retry
	if r.work != nil {
		o.Batch, o.Events, o.At, retried = true, r.work.Events, r.work.index(r.at), r.work.retried
		o.Many = r.many
	}
	if o.Kind == failure.Loss {
		o.Well = othersLive(intake, f.w.frontier, r.began)
	}
	if intake.Err() != nil && r.outcome != handlerFailed && r.outcome != conflicted {
		return 0, nil // the worker's own stop interrupted it
	}
	o.Now = time.Now()
	v := f.agenda.tallyOf(retried).Failed(f.w.cfg.failureLimits(), o)
	if r.waited { // the wait ends with the other batch
		v.Pause, v.Exhausted = min(v.Pause, lockwatch.PollEvery), false
	}
	if r.halved {
		v.Pause, v.Exhausted = 0, false
	}
	var ofKey partitions.KeyError
	keyless := errors.As(r.err, &ofKey)
	switch {
	case v.ByHandler:
		return f.byHandler(r, v)
	case v.Exhausted && !keyless:
		return 0, fmt.Errorf("%w: consumer %q, for %v (WithRetryLimit): %w", ErrOutage, f.unit.name, f.w.cfg.RetryLimit, explain(r.err))
	}
	err := errtext.Of(explain(r.err))
	f.unit.status.setError(err)
	about := f.unit.about(observe.ConditionDatabase)
	switch {
	case keyless:
		about = f.unit.about(observe.ConditionKey)
	case r.outcome == conflicted:
		about = f.unit.aboutBatch(observe.ConditionBatch, retried)
	}
	f.w.observers.Begin(about, err)
	f.w.observers.Notify(observe.Retrying{Consumer: f.unit.name, Condition: about.Condition, InARow: v.InARow, Pause: v.Pause, Err: err})
	return v.Pause, nil
}

// othersLive reports whether the frontier's connection survived the loss of another
// connection. began is when the iteration began. A server or a proxy that goes down closes
// its connections one after the other. So othersLive waits briefly before it asks.
func othersLive(intake context.Context, f *frontier.Frontier, began time.Time) bool {
	const after, patience = 100 * time.Millisecond, 2 * time.Second
	if !backoff.Sleep(intake, after) {
		return false
	}
	ctx, cancel := context.WithTimeout(intake, patience)
	defer cancel()
	return f.Outlived(ctx, began)
}

// byHandler carries out the decision about a handler's failure.
func (f *failureActions) byHandler(r result, v failure.Decision) (pause time.Duration, fatal error) {
	if len(r.work.Events) == 1 {
		r.at = &r.work.Events[0]
	}
	e := consumerError(f.unit.name, r, v)
	policy := f.w.cfg.FailurePolicy
	if r.work.retried != nil && r.work.retried.Err == nil {
		f.deadLetters.refuse(r)
		return 0, nil
	}
	f.unit.status.failed(e, v.InARow)
	switch {
	case v.Exhausted && (policy == FailStop || r.at == nil):
		f.w.observers.Notify(observe.ConsumerFailed{Consumer: f.unit.name, Policy: string(FailStop), Err: e})
		last := *e // other goroutines read e by now
		last.Err = errtext.Join(ErrConsecutiveFailures, r.err)
		if r.at != nil && len(r.work.Events) == 1 && r.work.retried == nil && f.agenda.othersBetween(r.work.from.Position, e.Position) {
			f.agenda.poison = &poison{FailStop, e.Position, v.Tries, &last, r.work.from.Revision}
			return 0, nil // read passes the events before it, and then ends the worker
		}
		return 0, &last
	case v.Exhausted:
		f.agenda.poison = &poison{policy, e.Position, v.Tries, e, r.work.from.Revision}
		f.w.observers.Notify(observe.ConsumerFailed{Consumer: f.unit.name, Policy: string(policy), Err: e})
		return 0, nil
	}
	f.w.observers.Begin(f.unit.aboutBatch(observe.ConditionBatch, r.work.retried), e)
	f.w.observers.Notify(observe.Retrying{Consumer: f.unit.name, Condition: observe.ConditionBatch, InARow: v.InARow, Pause: v.Pause, Err: e, ByHandler: true})
	return v.Pause, nil
}

// consumerError returns the error of a failed batch, with its event if that is known.
func consumerError(unit string, r result, v failure.Decision) *observe.ConsumerError {
	e := &observe.ConsumerError{Consumer: unit, Failures: cmp.Or(v.Tries, v.InARow), Err: r.err}
	if r.at != nil {
		e.Position, e.EventID, e.EventType = r.at.GlobalPosition, r.at.EventID, r.at.EventType
	}
	return e
}

// transactionEnded reports that a handler ended its transaction, and returns the error that
// ends the worker.
func (f *failureActions) transactionEnded(t txcheck.Fatal) error {
	e := consumerError(f.unit.name, result{err: t.Err, at: t.At}, failure.Decision{InARow: f.agenda.tally.Failures + 1})
	f.unit.status.failed(e, e.Failures)
	f.w.observers.Notify(observe.TransactionEnded{Consumer: f.unit.name, From: t.From, To: t.To, Unknown: errors.Is(e, ErrOutcomeUnknown), Err: e})
	return e
}

// pause carries out FailPause: no worker runs the consumer until an operator resumes it.
func (f *failureActions) pause(ctx context.Context, conn *sql.Conn) result {
	paused := false
	err := f.quickly(ctx, into(&paused, func(ctx context.Context) (bool, error) {
		return f.w.checkpoints.Pause(ctx, conn, f.unit.name, f.agenda.progress, f.w.text(f.agenda.poison.err))
	}))
	if err != nil {
		return result{outcome: disturbed, err: err} // the pause may have been committed: load shows that
	}
	if paused {
		f.announcePause()
		f.agenda.tally.Reset()
	}
	f.agenda.poison = nil
	return result{outcome: overtaken}
}

// loaded compares the poison event with the loaded progress. Another revision means that
// another worker or an operator has moved the consumer since.
func (f *failureActions) loaded() {
	if f.agenda.progress.Paused != nil {
		f.agenda.tally.Reset() // the operator who resumes the consumer decides about the failures
	}
	f.observeResumed()
	if p := f.agenda.poison; p != nil && p.revision != f.agenda.progress.Revision {
		if f.pausedForPoison() {
			f.announcePause() // the answer of the pause was lost
		}
		f.agenda.poison = nil
	}
}

// observeResumed ends the condition of a pause after an operator has resumed the consumer.
// It begins the condition for a pause that a worker has set, perhaps another worker.
func (f *failureActions) observeResumed() {
	switch p := f.agenda.progress.Paused; {
	case p == nil:
		f.w.observers.End(f.unit.about(observe.ConditionPaused))
	case p.ByWorker():
		f.w.observers.Begin(f.unit.about(observe.ConditionPaused), errors.New(p.Reason))
	}
}

// pausedForPoison reports whether the loaded pause was set by this worker for the poison
// event.
func (f *failureActions) pausedForPoison() bool {
	p := f.agenda.progress.Paused
	return p != nil && p.By == progress.By(f.w.id) && p.Reason == f.w.text(f.agenda.poison.err)
}

func (f *failureActions) announcePause() {
	reason := errtext.Storable(f.agenda.poison.err)
	f.w.observers.Begin(f.unit.about(observe.ConditionPaused), f.agenda.poison.err)
	f.w.observers.Notify(observe.ConsumerPaused{Consumer: f.unit.name, Reason: reason})
}
