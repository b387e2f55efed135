package consume

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgfrontier/worker/observe"
)

// overdueAfter is how long a handler may go on after its context has ended.
const overdueAfter = time.Second

// watchHandler says so, once, if the handler of a batch goes on after ctx has
// ended. The function that it returns is to be called when the handler returns.
//
// Nobody else can say it: the loop waits for the handler. database/sql rolls
// the transaction back meanwhile, so the consumer's row is free.
func (c *consumerLoop) watchHandler(ctx context.Context, t *transaction, b observe.Batch) (returned func()) {
	done, told := make(chan struct{}), make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(told)
		select {
		case <-done:
			return
		case <-time.After(overdueAfter):
		}
		err := fmt.Errorf("%w%s (%w)", ErrHandlerOverdue, t.where(), context.Cause(ctx))
		c.status.lasts(err, t.inFlight.Load())
		c.w.observers.Begin(c.about(observe.ConditionOverdue), err)
		defer c.w.observers.End(c.about(observe.ConditionOverdue))
		defer c.status.lasts(nil, 0)
		b.Err = err
		c.w.observers.Notify(observe.HandlerOverdue{Batch: b})
		<-done
	})
	return func() {
		close(done)
		if !stop() {
			<-told
		}
	}
}

// where says which event the handler was given and has not returned from, as part of an error.
func (t *transaction) where() string {
	if first := t.inFlight.Load(); first > 0 {
		return fmt.Sprintf("; it was given the event at position %d", first)
	}
	return "" // it is in the middleware of the batch, or in a commit
}

// stopGrace is what a stop allows beyond the time that it gives the batches
// in hand: for handlers that end, for rollbacks, and for a last look at the row.
func (w *Worker) stopGrace() time.Duration { return 2 * w.limits.leave }

// stopLimit is how long a stop waits for the batches in hand.
func (w *Worker) stopLimit() time.Duration {
	limit := w.cfg.ShutdownTimeout
	if limit == 0 {
		limit = w.cfg.BatchTimeout
	}
	return limit + w.stopGrace()
}

// leftBehind says which consumers a stop has not waited for.
func (w *Worker) leftBehind(running map[string]context.CancelFunc) error {
	var names []string
	for name := range running {
		names = append(names, fmt.Sprintf("%q", name))
	}
	slices.Sort(names)
	return fmt.Errorf("%w: consumer %s, %v after the stop began", ErrHandlerOverdue, strings.Join(names, ", "), w.stopLimit())
}
