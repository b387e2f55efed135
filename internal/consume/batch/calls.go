package batch

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/delivery"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// calls are the calls of the handler for a batch, one after the other. A call has events of
// one kind of delivery only. Late events come first.
type calls struct {
	b     *Batch
	whole context.Context        // of all calls
	ctx   context.Context        // whole, with the delivery of the next events
	rest  []store.PersistedEvent // not handled yet
	late  int                    // how many of rest are late
	alike int                    // how many of rest have the delivery of ctx
	done  int                    // how many events are handled

	events, given []store.PersistedEvent // of the call, as stored and as decoded

	at  *store.PersistedEvent // the event that failed; nil: unknown
	err error
}

// next prepares the next call. It returns false after the last call, after a failure, and
// after Batch.Until.
func (c *calls) next() bool {
	if c.err != nil || len(c.rest) == 0 {
		return false
	}
	if c.alike == 0 {
		if c.at, c.err = c.deliver(); c.err != nil {
			return false
		}
	}
	c.events = c.rest[:c.alike]
	if c.b.Bulk == nil {
		if c.events = c.rest[:1]; c.ctx.Err() != nil {
			c.at, c.err = &c.rest[0], context.Cause(c.ctx)
			return false
		}
	}
	at := 0
	if c.given, at, c.err = decode(c.ctx, c.b.Decoder, c.events); c.err != nil {
		c.at = &c.events[at]
		return false
	}
	now, t := time.Now(), c.b.Tx
	if t.handled > 0 && !c.b.Until.IsZero() && now.After(c.b.Until) {
		t.Through = t.handled
		return false
	}
	t.begin(c.events, now)
	return true
}

// returned records that the call returned err.
func (c *calls) returned(err error) {
	t := c.b.Tx
	position := t.inFlight.Load() // user code can change the event
	if c.err = t.check(err); c.err != nil {
		c.at = c.culprit()
		return
	}
	if c.b.Bulk == nil {
		t.handled = position
	}
	n := len(c.events)
	c.rest, c.late, c.alike, c.done = c.rest[n:], c.late-n, c.alike-n, c.done+n
}

// culprit returns the event of the failed call that failed, or nil if it is unknown.
func (c *calls) culprit() *store.PersistedEvent {
	if c.b.Bulk == nil {
		return &c.events[0]
	}
	if named := (*consumer.EventError)(nil); errors.As(c.err, &named) && named.Index >= 0 && named.Index < len(c.events) {
		return &c.events[named.Index]
	}
	return nil
}

// deliver decides how the next events are delivered, and how many of them alike. at is the
// event that failed.
func (c *calls) deliver() (at *store.PersistedEvent, err error) {
	b, d := c.b, c.b.Delivery
	n := len(c.rest)
	if d.Late = c.late > 0; d.Late {
		n = c.late
	}
	if n, d.Replay, err = b.countAlike(c.rest[:n]); err != nil {
		return &c.rest[n], keyError{err}
	}
	if d.Replay {
		others := func(e store.PersistedEvent) bool { return b.Delivered.IsOthers(e.GlobalPosition) }
		d.Shadow = others(c.rest[0])
		if i := slices.IndexFunc(c.rest[:n], func(e store.PersistedEvent) bool { return others(e) != d.Shadow }); i > 0 {
			n = i
		}
	}
	lend := func() (*sql.Conn, func()) { return b.Tx.Conn, b.Lend() }
	if b.Forget && b.Forgets != nil {
		if err := b.forget(delivery.With(c.whole, d, lend), c.rest[:n]); err != nil {
			return &c.rest[0], err
		}
	}
	c.ctx, c.alike = delivery.With(c.whole, d, lend), n
	return nil, nil
}

// forget makes the consumer forget the aggregate of the first replayed event.
func (b *Batch) forget(ctx context.Context, first []store.PersistedEvent) error {
	b.Tx.begin(first, time.Now())
	return b.Tx.check(runtime.Recovered(func() error {
		return b.Forgets.Forget(ctx, b.Tx.Tx, first[0].AggregateType, first[0].AggregateID)
	}))
}

// countAlike returns how many of the first events are replayed as the first event is, or new as the
// first event is. err concerns the event with index n.
func (b *Batch) countAlike(events []store.PersistedEvent) (n int, replay bool, err error) {
	had := b.Delivered
	if had.Beyond(events[0].GlobalPosition) && had.Beyond(events[len(events)-1].GlobalPosition) {
		return len(events), false, nil
	}
	for ; n < len(events); n++ {
		e := &events[n]
		is, err := had.Had(e.GlobalPosition, b.Key, func() (int, error) { return b.SlotOf(e) })
		switch {
		case err != nil:
			return n, false, err
		case n == 0:
			replay = is
		case is != replay:
			return n, replay, nil
		}
	}
	return n, replay, nil
}
