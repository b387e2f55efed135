package consume

import (
	"context"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

// refuse takes note that a dead letter has failed again. That is written down
// next, on a connection that is sound.
func (c *consumerLoop) refuse(r result) {
	c.w.deadLetterFailed(c.unit.name, r)
	c.refused = &progress.Retry{Position: r.work.retried.Position, Err: r.err}
	c.again.reset()
	about := c.aboutBatch(observe.ConditionBatch, r.work.retried)
	c.w.observers.Forget(func(s runtime.Subject) bool { return s == about }) // it is not tried any more
}

// settleDeadLetters takes into account what a committed batch did to the dead
// letters.
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
		c.forget() // it is not known which letters are left, or still to be tried
	}
}

// writeDeadLetters writes what a batch does to the dead letters.
func (c *consumerLoop) writeDeadLetters(ctx context.Context, tx store.Querier, w *work) error {
	if len(w.deadLetters) > 0 {
		return c.w.checkpoints.AddDeadLetters(ctx, tx, c.unit.name, w.deadLetters)
	}
	if w.retried != nil {
		return c.w.checkpoints.Retried(ctx, tx, c.unit.name, w.retried, c.w.text(w.retried.Err))
	}
	return nil
}

// text is what an error says, as the database stores it.
func (w *Worker) text(err error) string {
	text := errtext.Storable(err)
	if w.ascii {
		text = errtext.ASCII(text)
	}
	return text
}

// deadLetterFailed reports a dead letter that has failed again.
func (w *Worker) deadLetterFailed(consumer string, r result) {
	e := r.work.Events[0]
	w.observers.Notify(observe.DeadLetterFailed{DeadLetter: observe.DeadLetter{
		Consumer: consumer, AggregateType: e.AggregateType, AggregateID: e.AggregateID, Position: e.GlobalPosition, EventID: e.EventID, EventType: e.EventType,
		Attempts: r.work.retried.Attempts + 1, Error: errtext.Storable(r.err)}})
}
