package worker

import (
	"context"
	"database/sql"
	"errors"
	"runtime/debug"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// handleAll gives the events of a page to the consumer, late ones first, and
// returns the one that it failed at, nil if nobody knows.
func (c *consumerLoop) handleAll(ctx context.Context, conn *sql.Conn, tx *sql.Tx, p page) (*store.PersistedEvent, error) {
	n := countLate(p.events, p.look.Checkpoint)
	d := consumer.Delivery{Consumer: c.unit.name, Attempt: c.attempt, Late: true}
	if p.retried != nil {
		d.Attempt = p.retried.attempts + 1
	}
	handle := c.handleEach
	if c.unit.bulk != nil {
		handle = c.handleBulk
	}
	if n > 0 {
		if at, err := handle(consumer.WithDelivery(ctx, d, conn), conn, tx, p.events[:n]); err != nil {
			return at, err
		}
	}
	if n == len(p.events) {
		return nil, nil
	}
	d.Late = false
	return handle(consumer.WithDelivery(ctx, d, conn), conn, tx, p.events[n:])
}

func (c *consumerLoop) handleEach(ctx context.Context, conn *sql.Conn, tx *sql.Tx, events []store.PersistedEvent) (*store.PersistedEvent, error) {
	for i := range events {
		e := &events[i]
		if ctx.Err() != nil {
			return e, context.Cause(ctx)
		}
		if err := handleOne(ctx, c.unit.consumer, tx, *e); err != nil {
			return e, err
		}
		if err := checkTransaction(conn); err != nil {
			return e, err
		}
	}
	return nil, nil
}

func (c *consumerLoop) handleBulk(ctx context.Context, conn *sql.Conn, tx *sql.Tx, events []store.PersistedEvent) (*store.PersistedEvent, error) {
	err := recovering(func() error { return c.unit.bulk.HandleBatch(ctx, tx, events) })
	if err == nil {
		err = checkTransaction(conn)
	}
	if culprit := (*consumer.EventError)(nil); errors.As(err, &culprit) && culprit.Index >= 0 && culprit.Index < len(events) {
		return &events[culprit.Index], err
	}
	return nil, err
}

// handleOne is recovering, without a closure for every event.
func handleOne(ctx context.Context, c consumer.Consumer, tx *sql.Tx, event store.PersistedEvent) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return c.Handle(ctx, tx, event)
}

// recovering turns a panic into an error.
func recovering(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return f()
}

// checkTransaction looks, without asking the server, whether the handler left
// the transaction as it must. Where the driver does not show it, a commit by the
// handler stays unseen, and an aborted transaction is found by our own COMMIT.
func checkTransaction(conn *sql.Conn) error {
	switch pgdriver.Status(conn) {
	case pgdriver.TxNone:
		return ErrTransactionEnded
	case pgdriver.TxAborted:
		return errTxAborted
	}
	return nil
}
