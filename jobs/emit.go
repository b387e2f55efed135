package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/pgfrontier/worker/internal/delivery"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// EmitAs names the emitter of [Client.EnqueueFor]. By default the emitter is the consumer. A copy
// of a consumer under another name continues as the same emitter if both give the same name. A
// consumer that was renamed by [ops.Operator.Rename] continues as the same emitter without EmitAs.
func EmitAs(emitter string) EnqueueOption {
	return enqueueOption(func(e *enqueueSpec) {
		e.emitAs = emitter
		if err := checkName("EmitAs", emitter); err != nil {
			e.errs = append(e.errs, err)
		}
	})
}

// EnqueueFor enqueues a job for an event, in the Handle of a consumer. Give it Handle's context,
// transaction and event. The job is enqueued once for each event and call. A consumer that is reset
// and handles the event again does not enqueue the job twice. Events that come late are covered
// too. Jobs are deduplicated by the event and the number of the call in Handle. Calls that return
// an error count as well. Do not reorder or insert calls in a deployed handler. [Enqueued.Existing]
// reports that the job was enqueued before; its ID is then unknown.
//
// If [consumer.Delivery] has Shadow set, nothing is enqueued, and Existing is set: the job is that of
// another consumer.
//
// If an operator makes a consumer skip an event, its jobs count as enqueued. The job is part of the
// transaction: if the batch is rolled back, the job was never enqueued.
func (c *Client) EnqueueFor(ctx context.Context, tx Querier, event store.PersistedEvent, args Args, opts ...EnqueueOption) (Enqueued, error) {
	if c.err != nil {
		return Enqueued{}, c.err
	}
	n, ok := delivery.Next(ctx, event.GlobalPosition)
	s, err := EnqueueParams{args, opts}.spec()
	switch {
	case err != nil:
		return Enqueued{}, err
	case pgdriver.IsNil(tx):
		return Enqueued{}, fmt.Errorf("%w: EnqueueFor: tx is nil: give the transaction that Handle was given", ErrInvalid)
	case s.unique > 0 || s.once != nil:
		return Enqueued{}, fmt.Errorf("%w: EnqueueFor takes no Unique, UniqueUntilStart or Once: the event is the key", ErrInvalid)
	case event.GlobalPosition < 1:
		return Enqueued{}, fmt.Errorf("%w: EnqueueFor: the event has no position", ErrInvalid)
	case !ok:
		return Enqueued{}, errOutsideHandle
	}
	info, _ := consumer.Info(ctx)
	if info.Shadow {
		return Enqueued{Existing: true}, nil
	}
	s.emitAs = cmp.Or(s.emitAs, info.Consumer)
	id, err := c.queue.Emit(ctx, tx, s.job, s.emitAs, event.GlobalPosition, n)
	return Enqueued{ID: id, Existing: id == 0 && err == nil}, errtext.Of(pgdriver.Misfit(err))
}

var errOutsideHandle = errors.New("jobs: EnqueueFor works in the Handle of a consumer only, with its context: use Enqueue elsewhere")
