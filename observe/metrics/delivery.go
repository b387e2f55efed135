package metrics

import (
	"context"
	"database/sql"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

type deliveriesKey struct{}

// deliveries are when the events of a batch were created. Only the batch's goroutine uses it.
type deliveries []time.Time

// Batch measures how old events are when they have been handled, for
// [worker.WithBatchMiddleware]. It takes [Recorder.Handle], too.
func (r *Recorder) Batch(next worker.BatchFunc) worker.BatchFunc {
	return func(ctx context.Context, b observe.Batch) error {
		created := make(deliveries, 0, b.Events)
		err := next(context.WithValue(ctx, deliveriesKey{}, &created), b)
		if err != nil || len(created) == 0 {
			return err
		}
		name, _ := split(b.Consumer)
		record, now := r.histogram(deliveryDuration, name), time.Now()
		for _, at := range created {
			record(ctx, max(now.Sub(at), 0).Seconds())
		}
		return nil
	}
}

// Handle records the events that have a time, for [worker.WithHandleMiddleware].
func (r *Recorder) Handle(next worker.HandleFunc) worker.HandleFunc {
	return func(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
		d, _ := consumer.Info(ctx)
		if created, is := ctx.Value(deliveriesKey{}).(*deliveries); is && !d.Replay {
			for i := range events {
				if at := events[i].CreatedAt; at.After(store.EarliestTime) && at.Before(store.LatestTime) {
					*created = append(*created, at)
				}
			}
		}
		return next(ctx, tx, events)
	}
}
