package workertest

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"sync"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// transaction is a transaction that a handler receives and must not end. Its id distinguishes
// it from later transactions, with every driver.
type transaction struct {
	tx     *sql.Tx
	conn   *sql.Conn // on which it runs
	id     string
	shared bool // with a worker, which rolls it back itself
}

func number(ctx context.Context, tx *sql.Tx, conn *sql.Conn) (*transaction, error) {
	id, err := currentID(ctx, tx)
	return &transaction{tx: tx, conn: conn, id: id}, err
}

func currentID(ctx context.Context, q store.Querier) (id string, err error) {
	err = q.QueryRowContext(ctx, `SELECT txid_current()::text`).Scan(&id)
	return id, err
}

// call calls a handler and then checks the transaction, whether the handler returns an error or
// not. It passes a panic on, unless the handler has ended the transaction.
func (t *transaction) call(ctx context.Context, handle func() error) (err error) {
	panics := true
	defer func() {
		if !panics {
			return
		}
		if ended := t.check(ctx, nil); errors.Is(ended, worker.ErrTransactionEnded) {
			err = fmt.Errorf("%w; %w", ended, runtime.Panicked(recover()))
		}
	}()
	err = handle()
	panics = false
	return t.check(ctx, err)
}

// check returns worker.ErrTransactionEnded if the handler, which returned err, has ended the
// transaction.
func (t *transaction) check(ctx context.Context, err error) error {
	id, failed := currentID(ctx, t.tx)
	aborted := pgdriver.SQLState(failed) == pgdriver.InFailedTransaction
	switch {
	case failed == nil && id == t.id, ctx.Err() != nil && err != nil:
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case aborted && t.shared:
		return cmp.Or(err, pgdriver.ErrTxAborted) // the worker checks an aborted transaction
	case aborted:
		_ = t.tx.Rollback() // the rollback lets ending read the transaction's status
	case failed != nil && !errors.Is(failed, sql.ErrTxDone):
		return errtext.Join(err, failed)
	}
	how, failed := t.ending(ctx, id)
	switch {
	case failed != nil:
		return errtext.Join(err, failed)
	case aborted && how != committed:
		return cmp.Or(err, pgdriver.ErrTxAborted)
	case err != nil:
		return fmt.Errorf("%w: it was %s; the handler returned: %w", worker.ErrTransactionEnded, how, err)
	}
	return fmt.Errorf("%w: it was %s", worker.ErrTransactionEnded, how)
}

const committed = "committed"

// ending returns how the transaction ended. next is the id of the next transaction, empty if
// there was none.
func (t *transaction) ending(ctx context.Context, next string) (how string, err error) {
	var status sql.NullString
	if err := t.conn.QueryRowContext(ctx, `SELECT txid_status($1::bigint)`, t.id).Scan(&status); err != nil {
		return "", fmt.Errorf("read the status of the transaction: %w", err)
	}
	if how = "rolled back"; status.String == committed {
		how = committed
	}
	// A statement outside of a transaction has its own id.
	if id, err := currentID(ctx, t.conn); err == nil && id == next {
		how += ", and another was begun (AND CHAIN, or BEGIN)"
	}
	return how, nil
}

// watched checks every call of a consumer's handler.
type watched struct {
	consumer.Consumer
	around around          // nil: call the handler
	start  *consumer.Start // nil: the consumer's own
	mu     sync.Mutex
	last   map[string]*transaction // of each unit: no two calls of a unit run at the same time
}

// around calls a handler with events, in the transaction t.
type around func(ctx context.Context, t *transaction, events []store.PersistedEvent, handle func() error) error

// watchedBatch is watched for a BatchConsumer.
type watchedBatch struct {
	*watched
	bulk consumer.BatchConsumer
}

// inParts adds Partitions to a watched consumer.
type inParts struct{ of consumer.Partitioned }

func (p inParts) Partitions() consumer.Partitions { return p.of.Partitions() }

// watch wraps the consumers so that every call of their handlers is checked.
func watch(consumers []consumer.Consumer) []consumer.Consumer {
	all := make([]consumer.Consumer, len(consumers))
	for i, c := range consumers {
		if all[i] = c; !isNil(c) { // the worker refuses nil
			all[i] = watchOne(c, nil, nil)
		}
	}
	return all
}

func isNil(c consumer.Consumer) bool {
	v := reflect.ValueOf(c)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

// watchOne wraps c. The result has the same optional interfaces as c.
func watchOne(c consumer.Consumer, f around, start *consumer.Start) consumer.Consumer {
	bulk, isBulk := c.(consumer.BatchConsumer)
	parts, isParts := c.(consumer.Partitioned)
	w := &watched{Consumer: c, around: f, start: start, last: map[string]*transaction{}}
	switch {
	case isBulk && isParts:
		return struct {
			*watchedBatch
			inParts
		}{&watchedBatch{w, bulk}, inParts{parts}}
	case isBulk:
		return &watchedBatch{w, bulk}
	case isParts:
		return struct {
			*watched
			inParts
		}{w, inParts{parts}}
	}
	return w
}

func (w *watched) AggregateTypes() []string {
	if s, ok := w.Consumer.(consumer.ScopedConsumer); ok {
		return s.AggregateTypes()
	}
	return nil
}

func (w *watched) StartAt() consumer.Start {
	if w.start != nil {
		return *w.start
	}
	if s, ok := w.Consumer.(consumer.Starter); ok {
		return s.StartAt()
	}
	return consumer.AtBeginning()
}

func (w *watched) Forget(ctx context.Context, tx *sql.Tx, aggregateType, aggregateID string) error {
	f, ok := w.Consumer.(consumer.Forgetter)
	if !ok {
		return nil
	}
	return w.call(ctx, tx, nil, func() error { return f.Forget(ctx, tx, aggregateType, aggregateID) })
}

func (w *watched) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	err := w.call(ctx, tx, []store.PersistedEvent{e}, func() error { return w.Consumer.Handle(ctx, tx, e) })
	if errors.Is(err, worker.ErrTransactionEnded) {
		return fmt.Errorf("at position %d: %w", e.GlobalPosition, err) // with lib/pq, the error of the worker lacks the position
	}
	return err
}

func (w *watchedBatch) HandleBatch(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
	return w.call(ctx, tx, events, func() error { return w.bulk.HandleBatch(ctx, tx, events) })
}

// call calls a handler with events, or Forget with none.
func (w *watched) call(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent, handle func() error) (err error) {
	d, _ := consumer.Info(ctx)
	w.mu.Lock()
	t := w.last[d.Partition]
	w.mu.Unlock()
	if t == nil || t.tx != tx {
		conn, _ := consumer.Conn(ctx)
		if t, err = number(ctx, tx, conn); err != nil {
			return err
		}
		t.shared = true
		w.mu.Lock()
		w.last[d.Partition] = t
		w.mu.Unlock()
	}
	if w.around == nil || events == nil {
		return t.call(ctx, handle)
	}
	return t.call(ctx, func() error { return w.around(ctx, t, events, handle) })
}
