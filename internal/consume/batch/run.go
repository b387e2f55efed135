// Package batch calls a consumer, and decides whose failure an error is.
package batch

import (
	"context"
	"time"

	"github.com/pgfrontier/worker/internal/consume/failure"
	"github.com/pgfrontier/worker/internal/delivered"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// Batch is one batch that has passed its guard.
type Batch struct {
	*Handler
	Tx        *Tx
	Events    []store.PersistedEvent // late events first
	Late      int                    // how many of Events are late
	Delivery  consumer.Delivery      // of the first event; Late and Replay are set for each call
	Delivered delivered.Borders      // the events that were delivered before
	Forget    bool                   // the consumer forgets the aggregate of the first event before
	Until     time.Time              // no further event begins after it; zero: no bound
	Pace      Pace                   // before the batch

	// Prepare runs before the first call of the handler. Shorten ends the batch at the last
	// handled event, see Tx.Through. Commit commits the transaction.
	Prepare func(ctx context.Context) error
	Shorten func(ctx context.Context) error
	Commit  func() error
	// Lend records that the handler takes the transaction's connection, and back that the handler no
	// longer uses the connection.
	Lend func() (back func())
}

// Result is how a batch ended.
type Result struct {
	Kind failure.Kind // None: the batch was committed
	Err  error
	At   *store.PersistedEvent // the event that was being handled at the failure; nil: unknown
	Many bool                  // the batch had too many events for its time
	Pace Pace                  // after the batch

	Handle, Commit time.Duration // the durations of the calls and of the commit
}

// RunWithin runs a batch inside the middleware. The result is the batch's own: the
// middleware's error does not replace the batch's error. described is given to the
// middleware.
func (b *Batch) RunWithin(ctx context.Context, middleware func(next Func) Func, described observe.Batch) Result {
	r := Result{Pace: b.Pace}
	var once runtime.Next
	err := runtime.Recovered(func() error {
		return middleware(func(inner context.Context, _ observe.Batch) error {
			return once.Call(inner, func() error {
				r = b.Run(ctx, inner)
				return r.Err
			})
		})(ctx, described)
	})
	if missing := once.End(); missing != nil {
		r.Kind, r.Err, r.At, r.Many = failure.Handler, errtext.Join(missing, err), nil, false
	}
	return r
}

// Run runs the batch's handlers and the commit. ctx is the worker's, and inner is the
// middleware's: the handlers get inner.
func (b *Batch) Run(ctx, inner context.Context) (r Result) {
	r.Pace = b.Pace
	if err := b.Prepare(ctx); err != nil {
		r.Kind, r.Err = failure.Database, err
		return r
	}
	began := time.Now()
	c := calls{b: b, whole: inner, rest: b.Events, late: b.Late}
	for c.next() {
		if b.Middleware != nil {
			c.returned(b.callWithin(c.ctx, b.Tx.Tx, c.given))
		} else {
			c.returned(b.call(c.ctx, b.Tx.Tx, c.given))
		}
	}
	if c.err == nil && b.Tx.Through > 0 {
		c.err = b.Shorten(ctx)
	}
	r.Handle = time.Since(began)
	if c.err != nil {
		r.Kind, r.Err = classify(ctx, b.Tx, c.err)
		r.At = c.at
		b.timedOut(&r, c.done)
		return r
	}
	r.Pace = r.Pace.Handled(c.done, r.Handle)
	began = time.Now()
	err := b.Commit()
	if r.Commit = time.Since(began); err != nil {
		r.Kind, r.Err = classifyCommit(ctx, err)
	}
	return r
}
