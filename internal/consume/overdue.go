package consume

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgfrontier/worker/internal/consume/batch"
	"github.com/pgfrontier/worker/observe"
)

// overdueAfter is how long a handler may run after its context has ended.
const overdueAfter = time.Second

// watchHandler reports, once, that the handler of a batch still runs after ctx has ended.
// The caller calls returned when the handler returns.
//
// The loop cannot report it, because it waits for the handler. Meanwhile database/sql rolls
// the transaction back, so the consumer's row is free.
func (c *consumerLoop) watchHandler(ctx context.Context, t *batch.Tx, b observe.Batch) (returned func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		select {
		case <-done:
			return
		case <-time.After(overdueAfter):
		}
		err := fmt.Errorf("%w%s (%w)", ErrHandlerOverdue, where(t), context.Cause(ctx))
		c.status.setOngoing(err, t.InFlight())
		c.w.observers.Begin(c.about(observe.ConditionOverdue), err)
		defer c.w.observers.End(c.about(observe.ConditionOverdue))
		defer c.status.setOngoing(nil, 0)
		b.Err = err
		c.w.observers.Notify(observe.HandlerOverdue{Batch: b})
		<-done
	})
	return func() {
		close(done)
		if !stop() {
			<-ended
		}
	}
}

// where names the event of the handler's running call, as part of an error.
func where(t *batch.Tx) string {
	if first := t.InFlight(); first > 0 {
		return fmt.Sprintf("; it was given the event at position %d", first)
	}
	return "" // the batch's middleware or the commit is running
}

// stopGrace is the time that a stop allows beyond the time of the batches in flight. It is
// for handlers that return late, for rollbacks, and for a last outcome lookup.
func (w *Worker) stopGrace() time.Duration { return 2 * w.limits.leave }

// stopLimit is how long a stop waits for the batches in flight.
func (w *Worker) stopLimit() time.Duration {
	limit := w.cfg.ShutdownTimeout
	if limit == 0 {
		limit = w.cfg.BatchTimeout
	}
	return limit + w.stopGrace()
}

// leftBehind returns an error that names the consumers whose handlers a stop has not waited
// for.
func (w *Worker) leftBehind(running map[string]context.CancelFunc) error {
	var names []string
	for name := range running {
		names = append(names, fmt.Sprintf("%q", name))
	}
	slices.Sort(names)
	return fmt.Errorf("%w: consumer %s, %v after the stop began", ErrHandlerOverdue, strings.Join(names, ", "), w.stopLimit())
}
