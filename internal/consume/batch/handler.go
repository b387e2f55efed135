package batch

import (
	"cmp"
	"context"
	"database/sql"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// The functions of a program around a batch, a call and an event, as package worker
// documents them.
type (
	Func       = func(ctx context.Context, b observe.Batch) error
	HandleFunc = func(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error
	Decoder    = func(ctx context.Context, e store.PersistedEvent) (store.PersistedEvent, error)
)

// Handler is a consumer, with what the worker's options put around its calls.
type Handler struct {
	Consumer   consumer.Consumer
	Bulk       consumer.BatchConsumer // the consumer, if it handles whole batches
	Forgets    consumer.Forgetter     // the consumer, if it forgets aggregates
	Middleware func(next HandleFunc) HandleFunc
	Decoder    Decoder
	Timeout    time.Duration // BatchTimeout
	Size       int           // BatchSize

	Key    string // name of the consumer's own key; empty: the aggregate
	SlotOf func(e *store.PersistedEvent) (int, error)
}

// call calls the consumer once, and turns a panic into an error. A consumer of single
// events gets one event. No closure is allocated for it.
func (h *Handler) call(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = runtime.Panicked(v)
		}
	}()
	if h.Bulk != nil {
		return errtext.Sound(h.Bulk.HandleBatch(ctx, tx, events))
	}
	return errtext.Sound(h.Consumer.Handle(ctx, tx, events[0]))
}

// callWithin calls the consumer once, inside the middleware.
func (h *Handler) callWithin(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
	var once runtime.Next
	var failed error
	err := runtime.Recovered(func() error {
		return h.Middleware(func(ctx context.Context, _ *sql.Tx, _ []store.PersistedEvent) error {
			return once.Call(ctx, func() error {
				if ctx.Err() != nil {
					failed = context.Cause(ctx)
				} else {
					failed = h.call(ctx, tx, events)
				}
				return failed
			})
		})(ctx, tx, events)
	})
	if missing := once.End(); missing != nil {
		return errtext.Join(missing, err)
	}
	return cmp.Or(failed, err)
}
