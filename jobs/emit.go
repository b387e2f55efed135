package jobs

import (
	"context"
	"errors"
	"fmt"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// EmitAs names who enqueues, for [Client.EnqueueFor]: the consumer, if it is not
// given. A copy of a consumer that takes over from it, under another name, goes on
// as the same emitter.
func EmitAs(emitter string) EnqueueOption {
	return enqueueOption(func(e *enqueueSpec) {
		e.emitAs = emitter
		if err := checkName("EmitAs", emitter); err != nil {
			e.errs = append(e.errs, err)
		}
	})
}

// EnqueueFor enqueues a job for an event, in the Handle of a consumer: with its
// context, its transaction and the event. It does so once for each event and call,
// also if the consumer is reset and handles the event again, and if the event comes
// late. The calls of a handler for an event count in their order, those that return an
// error as well: keep the order when the code changes. [Enqueued.Existing] reports that the job was enqueued before; its
// ID is then not known.
//
// What an operator makes a consumer skip counts as enqueued. The job is part of the
// transaction: if the batch is rolled back, it was never enqueued.
func (c *Client) EnqueueFor(ctx context.Context, tx Querier, event store.PersistedEvent, args Args, opts ...EnqueueOption) (Enqueued, error) {
	if c.err != nil {
		return Enqueued{}, c.err
	}
	n, ok := consumer.NextCall(ctx, event.GlobalPosition)
	s, err := Entry{args, opts}.spec()
	switch {
	case err != nil:
		return Enqueued{}, err
	case isNil(tx):
		return Enqueued{}, fmt.Errorf("%w: EnqueueFor: tx is nil: give the transaction that Handle was given", ErrInvalid)
	case s.unique > 0 || s.once != nil:
		return Enqueued{}, fmt.Errorf("%w: EnqueueFor takes no Unique, UniqueUntilStart or Once: the event is the key", ErrInvalid)
	case event.GlobalPosition < 1:
		return Enqueued{}, fmt.Errorf("%w: EnqueueFor: the event has no position", ErrInvalid)
	case !ok:
		return Enqueued{}, errOutsideHandle
	}
	if s.emitAs == "" {
		info, _ := consumer.Info(ctx)
		s.emitAs = info.Consumer
	}
	id, err := c.queue.Emit(ctx, tx, s.job, s.emitAs, event.GlobalPosition, n)
	return Enqueued{ID: id, Existing: id == 0 && err == nil}, errtext.Of(err)
}

var errOutsideHandle = errors.New("jobs: EnqueueFor works in the Handle of a consumer only, with its context: use Enqueue elsewhere")
