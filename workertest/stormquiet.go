package workertest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/delivery"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// quiet is a transaction in which the consumer handles events without a worker.
type quiet struct {
	s *storm
	t *transaction
}

// quietly calls play in a transaction that is always rolled back. It returns the read model after
// play.
func (s *storm) quietly(ctx context.Context, play func(context.Context, *quiet) error) (model [][]string, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	defer func() {
		cancel(nil)
		watch.Wait()
	}()
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }()
	t, err := number(ctx, tx, conn)
	if err != nil {
		return nil, err
	}
	var pid int
	if err := tx.QueryRowContext(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		return nil, err
	}
	watch.Go(func() { cancel(s.watchLocks(ctx, pid)) })
	if err = play(ctx, &quiet{s, t}); err == nil {
		model, err = readModel(ctx, tx, s.model)
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return model, err
}

// watchLocks returns an error if a statement of another session waits for a lock of the session pid.
// If the session waits itself, a late writer may hold the lock: then all late writers commit.
func (s *storm) watchLocks(ctx context.Context, pid int) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(10 * pollInterval):
		}
		var statement string
		var waits bool
		if err := s.db.QueryRowContext(ctx, `SELECT coalesce((SELECT query FROM pg_stat_activity WHERE $1::int = ANY (pg_blocking_pids(pid)) LIMIT 1), ''),
			cardinality(pg_blocking_pids($1::int)) > 0`, pid).Scan(&statement, &waits); err != nil {
			continue
		}
		if statement != "" {
			return fmt.Errorf("the statement %s waits for a lock of tx, and Handle waits for the statement: %s", errtext.Value(statement), hintPool)
		}
		for waits && len(s.late) > 0 {
			if err := s.commitLate(); err != nil {
				return err
			}
		}
	}
}

// handle calls the handler as a worker does for a batch.
func (q *quiet) handle(ctx context.Context, c consumer.Consumer, attempt int, late bool, events ...store.PersistedEvent) error {
	ctx, events, err := q.call(ctx, attempt, late, events)
	if err != nil {
		return err
	}
	return deliver(ctx, q.t, c, events)
}

// call returns the context and the events for a call of the handler.
func (q *quiet) call(ctx context.Context, attempt int, late bool, events []store.PersistedEvent) (context.Context, []store.PersistedEvent, error) {
	ctx = delivery.With(ctx, consumer.Delivery{Consumer: q.s.name, Attempt: attempt, Late: late}, delivery.LenderOf(q.t.conn))
	events = slices.Clone(events)
	for i, e := range events {
		if q.s.config.Decoder == nil {
			break
		}
		decoded, err := q.s.config.Decoder(ctx, e)
		if err != nil {
			return ctx, nil, fmt.Errorf("the decoder, at position %d: %w", e.GlobalPosition, err)
		}
		events[i] = decoded
	}
	return ctx, events, nil
}

func (q *quiet) exec(ctx context.Context, statement string) error {
	_, err := q.t.tx.ExecContext(ctx, statement)
	return err
}

// back undoes what followed the savepoint, which only the end of the transaction removes.
func (q *quiet) back(ctx context.Context) error {
	if err := q.exec(ctx, `ROLLBACK TO SAVEPOINT workertest`); err != nil {
		return fmt.Errorf("after a failed statement: %w: %w", worker.ErrTransactionEnded, err)
	}
	return nil
}

// plain handles all events in batches of ten.
func (q *quiet) plain(ctx context.Context) error {
	c := q.s.create()
	for events := range slices.Chunk(q.s.events, 10) {
		if err := q.handle(ctx, c, 1, false, events...); err != nil {
			return err
		}
	}
	return nil
}

// repeated handles each batch twice, the first time in vain. A new value of the consumer handles
// every third batch. The batches have one to three events.
func (q *quiet) repeated(ctx context.Context) error {
	var c consumer.Consumer
	for n, rest := 0, q.s.events; len(rest) > 0; n++ {
		events := rest[:min(1+n%3, len(rest))]
		rest = rest[len(events):]
		if n%3 == 0 {
			c = q.s.create()
		}
		if err := q.exec(ctx, `SAVEPOINT workertest`); err != nil {
			return err
		}
		for attempt := 1; attempt <= 2; attempt++ {
			if attempt == 2 {
				if err := q.back(ctx); err != nil {
					return err
				}
			}
			if err := q.handle(ctx, c, attempt, false, events...); err != nil {
				return err
			}
		}
	}
	return nil
}

// reordered handles the events in another order, each alone.
func (q *quiet) reordered(ctx context.Context) error {
	c, last := q.s.create(), int64(0)
	for _, e := range q.s.reordered() {
		if err := q.handle(ctx, c, 1, e.GlobalPosition < last, e); err != nil {
			return err
		}
		last = max(last, e.GlobalPosition)
	}
	return nil
}

// swallowing returns an error if the handler returns nil although each of its statements has failed.
// It calls the handler so for the first event of each type.
func (q *quiet) swallowing(ctx context.Context) error {
	c, seen := q.s.create(), map[string]bool{}
	for _, e := range q.s.events {
		if seen[e.EventType] {
			if err := q.handle(ctx, c, 1, false, e); err != nil {
				return err
			}
			continue
		}
		seen[e.EventType] = true
		swallowed, err := q.aborted(ctx, e)
		if err != nil {
			return err
		}
		before, err := q.touched(ctx)
		if err != nil {
			return err
		}
		if err := q.handle(ctx, c, 1, false, e); err != nil {
			return err
		}
		after, err := q.touched(ctx)
		if err != nil {
			return err
		}
		if swallowed && after > before {
			return fmt.Errorf("at position %d (type %s) Handle returned no error although each of its statements had failed: return the error of every statement", e.GlobalPosition, errtext.Value(e.EventType))
		}
	}
	return nil
}

// aborted calls the handler in an aborted transaction, and reports whether it returned nil.
func (q *quiet) aborted(ctx context.Context, e store.PersistedEvent) (swallowed bool, err error) {
	if err := q.exec(ctx, `SAVEPOINT workertest`); err != nil {
		return false, err
	}
	_ = q.exec(ctx, `SELECT 1/0`)
	swallowed = q.handleAborted(ctx, e) == nil
	return swallowed, q.back(ctx)
}

// handleAborted calls the handler of a new value, and does not check the transaction.
func (q *quiet) handleAborted(ctx context.Context, e store.PersistedEvent) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = errors.New("a panic")
		}
	}()
	ctx, events, err := q.call(ctx, 1, false, []store.PersistedEvent{e})
	if err != nil {
		return err
	}
	c := q.s.create()
	if bulk, ok := c.(consumer.BatchConsumer); ok {
		return bulk.HandleBatch(ctx, q.t.tx, events)
	}
	return c.Handle(ctx, q.t.tx, events[0])
}

// touched returns how often the transaction has scanned or written a table.
func (q *quiet) touched(ctx context.Context) (n int64, err error) {
	err = q.t.tx.QueryRowContext(ctx, `SELECT coalesce(sum(seq_scan + coalesce(idx_scan, 0) + n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint FROM pg_stat_xact_user_tables`).Scan(&n)
	return n, err
}
