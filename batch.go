package worker

import (
	"context"
	"database/sql"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// outcome is how a batch ended.
type outcome int

const (
	committed outcome = iota
	// overtaken: the guard found that the progress, the assignment or the
	// server's life is not what it was. Load again.
	overtaken
	// handlerFailed counts against the consumer.
	handlerFailed
	// conflicted: PostgreSQL sacrificed the transaction. It counts only if it
	// happens to the same batch again and again.
	conflicted
	// disturbed: the connection, the server or our own statements. It never
	// counts.
	disturbed
	// forbidden: the handler ended the transaction. Fatal.
	forbidden
)

// result is an outcome with its details.
type result struct {
	outcome outcome
	err     error
	at      *store.PersistedEvent // being handled when it failed
	moved   rowState              // after a commit
}

// runBatch applies a page in one transaction: guard, handlers, commit. intake
// ends when nothing new may begin: until the guard has returned, nothing has.
// From then on only ctx and BatchTimeout end the batch.
func (c *consumerLoop) runBatch(ctx, intake context.Context, conn *sql.Conn, p page, a advance) result {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return result{outcome: disturbed, err: fmt.Errorf("worker: begin a batch: %w", err)}
	}
	defer func() { _ = tx.Rollback() }() // a no-op after the commit

	guardCtx, guarded := context.WithCancel(ctx)
	stop := context.AfterFunc(intake, guarded)
	moved, owned, err := c.w.checkpoints.Guard(guardCtx, tx, c.unit.name, c.progress, a)
	stop()
	guarded()
	switch {
	case err != nil:
		return result{outcome: disturbed, err: fmt.Errorf("worker: guard of a batch: %w", err)}
	case !owned:
		return result{outcome: overtaken}
	}

	// Waiting for the guard is no fault of the handler: its clock starts now.
	deadline := time.AfterFunc(c.w.cfg.BatchTimeout, func() { cancel(errBatchTimeout) })
	defer deadline.Stop()
	if at, err := c.handleAll(ctx, conn, tx, p); err != nil {
		return c.blame(ctx, conn, at, err)
	}
	if err := tx.Commit(); err != nil {
		return c.blameCommit(ctx, err)
	}
	return result{outcome: committed, moved: moved}
}

// handleAll calls the handler for every event and returns the one that it
// failed at.
func (c *consumerLoop) handleAll(ctx context.Context, conn *sql.Conn, tx *sql.Tx, p page) (*store.PersistedEvent, error) {
	d := consumer.Delivery{Consumer: c.unit.name, Attempt: c.attempt}
	onTime := consumer.WithDelivery(ctx, d, conn)
	d.Late = true
	late := consumer.WithDelivery(ctx, d, conn)
	for i := range p.events {
		e := &p.events[i]
		if ctx.Err() != nil {
			return e, context.Cause(ctx)
		}
		delivery := onTime
		if e.GlobalPosition <= p.look.Checkpoint {
			delivery = late
		}
		if err := handleOne(delivery, c.unit.consumer, tx, *e); err != nil {
			return e, err
		}
		if err := conn.Raw(checkTransaction); err != nil {
			return e, err
		}
	}
	return nil, nil
}

// handleOne calls the handler and turns its panic into an error.
func handleOne(ctx context.Context, c consumer.Consumer, tx *sql.Tx, event store.PersistedEvent) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return c.Handle(ctx, tx, event)
}

// checkTransaction looks, without asking the server, whether the handler left
// the transaction as it must. lib/pq does not show it: there a commit by the
// handler stays unseen, and an aborted transaction is found by our own COMMIT.
func checkTransaction(driverConn any) error {
	c, ok := driverConn.(*stdlib.Conn)
	if !ok {
		return nil
	}
	switch c.Conn().PgConn().TxStatus() {
	case 'I':
		return ErrTransactionEnded
	case 'E':
		return errTxAborted
	}
	return nil
}
