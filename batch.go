package worker

import (
	"context"
	"database/sql"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// page is what one look at the log found between a checkpoint and the
// frontier.
type page struct {
	events  []store.PersistedEvent
	through int64         // the checkpoint after these events
	missing store.Missing // positions up to through without an event of any type
	full    bool          // there is probably more
}

// readPage reads the events in (after, v.Safe]. v must have been published
// before the read begins: what is missing below v.Safe in a later snapshot is
// void.
func (c *consumerLoop) readPage(ctx context.Context, q store.Querier, after int64, v *frontier.Value) (page, error) {
	limit := c.w.cfg.BatchSize
	if scoped, ok := c.w.log.(store.ScopedReader); ok && len(c.unit.types) > 0 {
		p, err := scoped.ReadScoped(ctx, q, store.ScopedRange{After: after, UpTo: v.Safe, Types: c.unit.types, Limit: limit})
		if err != nil {
			return page{}, fmt.Errorf("worker: read events: %w", err)
		}
		return page{events: p.Events, through: p.Through, missing: p.Missing, full: p.Through < v.Safe}, nil
	}
	events, err := c.w.log.ReadEvents(ctx, q, after, limit)
	if err != nil {
		return page{}, fmt.Errorf("worker: read events: %w", err)
	}
	return cut(events, after, v.Safe, limit, c.unit.wants), nil
}

// cut makes a page of what ReadEvents returned: nothing above safe, only the
// types that are wanted, and the gaps between them summed up.
func cut(events []store.PersistedEvent, after, safe int64, limit int, wants func(aggregateType string) bool) page {
	p := page{through: safe}
	if len(events) == limit && events[limit-1].GlobalPosition < safe {
		p.through, p.full = events[limit-1].GlobalPosition, true
	}
	kept := events[:0]
	last := after
	gap := func(first, end int64) {
		if first > end {
			return
		}
		if p.missing.Count == 0 {
			p.missing.First = first
		}
		p.missing.Last = end
		p.missing.Count += end - first + 1
	}
	for i := range events {
		position := events[i].GlobalPosition
		if position > p.through {
			break
		}
		gap(last+1, position-1)
		last = position
		if wants(events[i].AggregateType) {
			kept = append(kept, events[i])
		}
	}
	gap(last+1, p.through)
	p.events = kept
	return p
}

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
	outcome  outcome
	err      error
	at       *store.PersistedEvent // being handled when it failed
	revision int64                 // after a commit
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
	revision, owned, err := c.w.checkpoints.Guard(guardCtx, tx, c.unit.name, c.progress, a)
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
	if at, err := c.handleAll(ctx, conn, tx, p.events); err != nil {
		return c.blame(ctx, conn, at, err)
	}
	if err := tx.Commit(); err != nil {
		return c.blameCommit(ctx, err)
	}
	return result{outcome: committed, revision: revision}
}

// handleAll calls the handler for every event and returns the one that it
// failed at.
func (c *consumerLoop) handleAll(ctx context.Context, conn *sql.Conn, tx *sql.Tx, events []store.PersistedEvent) (*store.PersistedEvent, error) {
	ctx = consumer.WithDelivery(ctx, consumer.Delivery{Consumer: c.unit.name, Attempt: c.attempt}, conn)
	for i := range events {
		if ctx.Err() != nil {
			return &events[i], context.Cause(ctx)
		}
		if err := handleOne(ctx, c.unit.consumer, tx, events[i]); err != nil {
			return &events[i], err
		}
		if err := conn.Raw(checkTransaction); err != nil {
			return &events[i], err
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
