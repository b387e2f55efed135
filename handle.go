package worker

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// handleAll gives the events of a batch to the consumer, late ones first, and
// returns the one that it failed at, nil if nobody knows.
func (c *consumerLoop) handleAll(ctx context.Context, t *transaction, w *work) (*store.PersistedEvent, error) {
	n := w.late()
	d := consumer.Delivery{Consumer: c.unit.title, Partition: c.unit.slots.String(), Attempt: c.tally.attempt(), Late: true}
	if w.retried != nil {
		d.Attempt = w.retried.Attempts + 1
	}
	handle := c.handleEach
	if c.unit.bulk != nil {
		handle = c.handleBulk
	}
	lend := func() *sql.Conn {
		c.lent.Store(true)
		return t.conn
	}
	if n > 0 {
		if at, err := handle(consumer.WithDelivery(ctx, d, lend), t, w.Events[:n]); err != nil {
			return at, err
		}
	}
	if n == len(w.Events) {
		return nil, nil
	}
	d.Late = false
	return handle(consumer.WithDelivery(ctx, d, lend), t, w.Events[n:])
}

func (c *consumerLoop) handleEach(ctx context.Context, t *transaction, events []store.PersistedEvent) (*store.PersistedEvent, error) {
	for i := range events {
		e := &events[i]
		if ctx.Err() != nil {
			return e, context.Cause(ctx)
		}
		t.calls(events[i : i+1])
		if err := t.check(handleOne(ctx, c.unit.consumer, t.Tx, *e)); err != nil {
			return e, err
		}
	}
	return nil, nil
}

func (c *consumerLoop) handleBulk(ctx context.Context, t *transaction, events []store.PersistedEvent) (*store.PersistedEvent, error) {
	t.calls(events)
	err := t.check(recovering(func() error { return c.unit.bulk.HandleBatch(ctx, t.Tx, events) }))
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
	return errtext.Sound(c.Handle(ctx, tx, event))
}

// recovering turns a panic into an error. The error of f is sound: errors.Is and
// the like call its methods in the worker's goroutines.
func recovering(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return errtext.Sound(f())
}

// transaction is a batch's, with what shows whether it still is.
type transaction struct {
	*sql.Tx
	ctx    context.Context // rolls it back when it ends
	conn   *sql.Conn
	moved  progress.Version       // by its guard
	marked bool                   // the driver shows its end, also if another follows at once
	call   []store.PersistedEvent // that the handler was given last
	intact bool                   // the driver shows that no call has ended it
	ended  bool                   // or that one has
	fault  []store.PersistedEvent // the same, if the transaction ended in that call
}

// calls takes note of what the handler is given next.
func (t *transaction) calls(events []store.PersistedEvent) { t.call, t.intact = events, false }

// errGone is what a handler fails with that returned nil on a lost connection.
var errGone = fmt.Errorf("the connection was lost in the handler: %w", driver.ErrBadConn)

// check looks whether the handler, which returned err, left the transaction as
// it must. That costs no round trip. Where the driver does not show it, the
// checkpoint's row tells afterwards, see lastBatch.
func (t *transaction) check(err error) error {
	status, marked := pgdriver.Status(t.conn)
	switch {
	case status == pgdriver.TxOpen && (marked || !t.marked):
		t.intact = marked
		return err
	case err == nil && pgdriver.IsGone(t.conn):
		err = errGone // this event is not finished, and none after it may begin
	case status == pgdriver.TxUnknown && !t.marked && !pgdriver.IsDone(t.Tx):
		return err
	}
	if t.marked && !(marked && (status == pgdriver.TxOpen || status == pgdriver.TxLost)) {
		t.fault = t.call // if it turns out that there is one
	}
	switch {
	case status == pgdriver.TxAborted && err == nil:
		return errTxAborted
	case status == pgdriver.TxAborted:
		return err
	case pgdriver.IsGone(t.conn):
		return cmp.Or(err, errGone)
	case t.ctx.Err() != nil:
		return cmp.Or(err, context.Cause(t.ctx))
	}
	if status == pgdriver.TxOpen {
		switch another, failed := t.isAnother(); {
		case failed != nil:
			return cmp.Or(err, failed) // nor does anybody know what became of it
		case !another:
			t.fault = nil
			return err
		}
	}
	t.fault, t.ended = t.call, true
	if err != nil {
		return fmt.Errorf("%w; the handler returned: %w", ErrTransactionEnded, err)
	}
	return ErrTransactionEnded
}

// isAnother asks the server whether the transaction, which has lost its mark,
// is another than the guard's: RESET ALL takes the mark away, too.
func (t *transaction) isAnother() (bool, error) {
	var id string
	err := t.QueryRowContext(t.ctx, `SELECT coalesce(pg_current_xact_id_if_assigned()::xid::text, '')`).Scan(&id)
	return id != t.moved.Author, err
}
