package consume

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/consume/failure"
	"github.com/pgfrontier/worker/internal/consume/lockwatch"
	"github.com/pgfrontier/worker/internal/consume/partitions"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/observe"
)

// failureLimits returns the options that decide what follows from a failure.
func (c *Config) failureLimits() *failure.Limits {
	return &failure.Limits{Attempts: c.MaxConsecutiveFailures, Stop: c.FailurePolicy == FailStop, RetryLimit: c.RetryLimit, Pause: c.PollInterval, MaxPause: c.MaxPollInterval}
}

// afterFailure returns the pause after a failed iteration, or the error that ends the
// worker.
func (c *consumerLoop) afterFailure(intake context.Context, r result) (pause time.Duration, fatal error) {
	f := failure.Failure{Kind: r.outcome.kind(), Random: rand.Float64()}
	var retried *progress.Retry
	if r.work != nil {
		f.Batch, f.Events, f.At, retried = true, r.work.Events, r.work.index(r.at), r.work.retried
		f.Many = r.many
	}
	if f.Kind == failure.Loss {
		f.Well = c.othersLive(intake, r.began)
	}
	if intake.Err() != nil && r.outcome != handlerFailed && r.outcome != conflicted {
		return 0, nil // the worker's own stop interrupted it
	}
	f.Now = time.Now()
	v := c.tallyOf(retried).Failed(c.w.cfg.failureLimits(), f)
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
		return c.failed(r, v)
	case v.Exhausted && !keyless:
		return 0, fmt.Errorf("%w: consumer %q, for %v (WithRetryLimit): %w", ErrOutage, c.unit.name, c.w.cfg.RetryLimit, explain(r.err))
	}
	err := errtext.Of(explain(r.err))
	c.status.setError(err)
	about := c.about(observe.ConditionDatabase)
	switch {
	case keyless:
		about = c.about(observe.ConditionKey)
	case r.outcome == conflicted:
		about = c.aboutBatch(observe.ConditionBatch, retried)
	}
	c.w.observers.Begin(about, err)
	c.w.observers.Notify(observe.Retrying{Consumer: c.unit.name, Condition: about.Condition, InARow: v.InARow, Pause: v.Pause, Err: err})
	return v.Pause, nil
}

// othersLive reports whether the frontier's connection survived the loss of another
// connection. began is when the iteration began. A server or a proxy that goes down closes
// its connections one after the other. So othersLive waits briefly before it asks.
func (c *consumerLoop) othersLive(intake context.Context, began time.Time) bool {
	const after, patience = 100 * time.Millisecond, 2 * time.Second
	if !backoff.Sleep(intake, after) {
		return false
	}
	ctx, cancel := context.WithTimeout(intake, patience)
	defer cancel()
	return c.w.frontier.Outlived(ctx, began)
}

// failed carries out the decision about a handler's failure.
func (c *consumerLoop) failed(r result, v failure.Decision) (pause time.Duration, fatal error) {
	if len(r.work.Events) == 1 {
		r.at = &r.work.Events[0]
	}
	e := c.consumerError(r, v)
	policy := c.w.cfg.FailurePolicy
	if r.work.retried != nil && r.work.retried.Err == nil {
		c.refuse(r)
		return 0, nil
	}
	c.status.failed(e, v.InARow)
	switch {
	case v.Exhausted && (policy == FailStop || r.at == nil):
		c.w.observers.Notify(observe.ConsumerFailed{Consumer: c.unit.name, Policy: string(FailStop), Err: e})
		last := *e // other goroutines read e by now
		last.Err = errtext.Join(ErrConsecutiveFailures, r.err)
		if r.at != nil && len(r.work.Events) == 1 && r.work.retried == nil && c.othersBetween(r.work.from.Position, e.Position) {
			c.poison = &poison{FailStop, e.Position, v.Tries, &last, r.work.from.Revision}
			return 0, nil // read passes the events before it, and then ends the worker
		}
		return 0, &last
	case v.Exhausted:
		c.poison = &poison{policy, e.Position, v.Tries, e, r.work.from.Revision}
		c.w.observers.Notify(observe.ConsumerFailed{Consumer: c.unit.name, Policy: string(policy), Err: e})
		return 0, nil
	}
	c.w.observers.Begin(c.aboutBatch(observe.ConditionBatch, r.work.retried), e)
	c.w.observers.Notify(observe.Retrying{Consumer: c.unit.name, Condition: observe.ConditionBatch, InARow: v.InARow, Pause: v.Pause, Err: e, ByHandler: true})
	return v.Pause, nil
}

func (c *consumerLoop) consumerError(r result, v failure.Decision) *observe.ConsumerError {
	e := &observe.ConsumerError{Consumer: c.unit.name, Failures: cmp.Or(v.Tries, v.InARow), Err: r.err}
	if r.at != nil {
		e.Position, e.EventID, e.EventType = r.at.GlobalPosition, r.at.EventID, r.at.EventType
	}
	return e
}

// pause carries out FailPause: no worker runs the consumer until an operator resumes it.
func (c *consumerLoop) pause(ctx context.Context, conn *sql.Conn) result {
	paused := false
	err := c.quickly(ctx, func(ctx context.Context) (err error) {
		paused, err = c.w.checkpoints.Pause(ctx, conn, c.unit.name, c.progress, c.w.text(c.poison.err))
		return err
	})
	if err != nil {
		return result{outcome: disturbed, err: err} // the pause may have been committed: load shows that
	}
	if paused {
		c.announcePause()
		c.tally.Reset()
	}
	c.poison = nil
	return result{outcome: overtaken}
}

// pausedForPoison reports whether the loaded pause was set by this worker for the poison
// event.
func (c *consumerLoop) pausedForPoison() bool {
	p := c.progress.Paused
	return p != nil && p.By == progress.By(c.w.id) && p.Reason == c.w.text(c.poison.err)
}

func (c *consumerLoop) announcePause() {
	reason := errtext.Storable(c.poison.err)
	c.w.observers.Begin(c.about(observe.ConditionPaused), c.poison.err)
	c.w.observers.Notify(observe.ConsumerPaused{Consumer: c.unit.name, Reason: reason})
}
