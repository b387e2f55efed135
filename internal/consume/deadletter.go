package consume

import (
	"context"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

// refuse records that the retry of a dead letter has failed. The next iteration writes the
// failure, on a working connection.
func (c *consumerLoop) refuse(r result) {
	c.w.deadLetterFailed(c.unit.name, r)
	c.refused = &progress.Retry{Position: r.work.retried.Position, Err: r.err}
	c.again.Reset()
	about := c.aboutBatch(observe.ConditionBatch, r.work.retried)
	c.w.observers.Forget(func(s runtime.Subject) bool { return s == about }) // the dead letter is not tried any more
}

// settleDeadLetters updates the loaded progress with the dead letters of a committed batch.
func (c *consumerLoop) settleDeadLetters(w *work) {
	switch {
	case len(w.deadLetters) > 0:
		c.progress.HasDeadLetters = true
		c.progress.DeadLetters = min(c.progress.DeadLetters+w.joined, progress.DeadLettersCounted)
		c.status.loaded(c.progress)
	case w.retried == nil:
	case w.retried.Err == nil && !w.retried.Forget && len(c.progress.Retries) > 1:
		c.progress.Retries = c.progress.Retries[1:]
	default:
		c.forget() // the remaining dead letters and retries are unknown
	}
}

// writeDeadLetters writes the batch's changes of the dead letters.
func (c *consumerLoop) writeDeadLetters(ctx context.Context, tx store.Querier, w *work) error {
	if len(w.deadLetters) > 0 {
		return c.w.checkpoints.AddDeadLetters(ctx, tx, c.unit.name, w.deadLetters)
	}
	if w.retried != nil {
		return c.w.checkpoints.Retried(ctx, tx, c.unit.name, w.retried, c.w.text(w.retried.Err))
	}
	return nil
}

// text returns an error's text as the database can store it.
func (w *Worker) text(err error) string {
	text := errtext.Storable(err)
	if w.ascii {
		text = errtext.ASCII(text)
	}
	return text
}

// deadLetterFailed reports a dead letter whose retry has failed.
func (w *Worker) deadLetterFailed(consumer string, r result) {
	e := r.work.Events[0]
	w.observers.Notify(observe.DeadLetterFailed{DeadLetter: observe.DeadLetter{
		Consumer: consumer, AggregateType: e.AggregateType, AggregateID: e.AggregateID, Position: e.GlobalPosition, EventID: e.EventID, EventType: e.EventType,
		Attempts: r.work.retried.Attempts + 1, Error: errtext.Storable(r.err)}})
}
