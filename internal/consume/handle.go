package consume

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// handleAll gives the events of a batch to the consumer, late ones first, and
// returns the one that it failed at, nil if nobody knows. A call has events of one kind
// of delivery only.
func (c *consumerLoop) handleAll(ctx context.Context, t *transaction, w *work) (*store.PersistedEvent, error) {
	d := consumer.Delivery{Consumer: c.unit.title, Partition: c.unit.slots.String(), Attempt: c.tally.attempt()}
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
	for late, rest := w.late(), w.Events; len(rest) > 0; {
		d.Late = late > 0
		n := len(rest)
		if d.Late {
			n = late
		}
		n, replay, err := c.alike(w, rest[:n])
		if err != nil {
			return &rest[n], err
		}
		d.Replay = replay
		if w.retried != nil && w.retried.Forget && c.unit.forgets != nil {
			if err := c.forgetAggregate(consumer.WithDelivery(ctx, d, lend), t, rest[:n]); err != nil {
				return &rest[0], err
			}
		}
		if at, err := handle(consumer.WithDelivery(ctx, d, lend), t, rest[:n]); err != nil {
			return at, err
		}
		if rest, late = rest[n:], late-n; t.through > 0 {
			break
		}
	}
	return nil, nil
}

// forgetAggregate lets the consumer forget the aggregate of an event, the first one that is
// replayed.
func (c *consumerLoop) forgetAggregate(ctx context.Context, t *transaction, first []store.PersistedEvent) error {
	t.calls(first, time.Now())
	return t.check(recovering(func() error {
		return c.unit.forgets.Forget(ctx, t.Tx, first[0].AggregateType, first[0].AggregateID)
	}))
}

// alike returns how many of the first events are replayed, or are not, as the first one
// is. An error is about the event with the index n.
func (c *consumerLoop) alike(w *work, events []store.PersistedEvent) (n int, replay bool, err error) {
	had := w.from.Effects
	if had.Beyond(events[0].GlobalPosition) && had.Beyond(events[len(events)-1].GlobalPosition) {
		return len(events), false, nil
	}
	for ; n < len(events); n++ {
		e := &events[n]
		is, err := had.Had(e.GlobalPosition, c.unit.key.Name(), func() (int, error) { return c.unit.slotOf(e) })
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

func (c *consumerLoop) handleEach(ctx context.Context, t *transaction, events []store.PersistedEvent) (*store.PersistedEvent, error) {
	for i := range events {
		e := &events[i]
		if ctx.Err() != nil {
			return e, context.Cause(ctx)
		}
		given, _, err := c.decode(ctx, events[i:i+1])
		if err != nil {
			return e, err
		}
		now, position := time.Now(), e.GlobalPosition // before the user's code has the event
		if t.handled > 0 && !t.until.IsZero() && now.After(t.until) {
			t.through = t.handled
			break
		}
		t.calls(events[i:i+1], now)
		if err := t.check(c.call(ctx, t.Tx, given)); err != nil {
			return e, err
		}
		t.handled = position
	}
	return nil, nil
}

func (c *consumerLoop) handleBulk(ctx context.Context, t *transaction, events []store.PersistedEvent) (*store.PersistedEvent, error) {
	given, at, err := c.decode(ctx, events)
	if err != nil {
		return &events[at], err
	}
	t.calls(events, time.Now())
	err = t.check(c.call(ctx, t.Tx, given))
	if culprit := (*consumer.EventError)(nil); errors.As(err, &culprit) && culprit.Index >= 0 && culprit.Index < len(events) {
		return &events[culprit.Index], err
	}
	return nil, err
}

// call calls the handler once, inside the middleware if there is one.
func (c *consumerLoop) call(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
	middleware := c.w.cfg.HandleMiddleware
	if middleware == nil {
		return c.handle(ctx, tx, events)
	}
	var p passage
	var failed error
	err := recovering(func() error {
		return middleware(func(ctx context.Context, _ *sql.Tx, _ []store.PersistedEvent) error {
			return p.through(ctx, func() error {
				if ctx.Err() != nil {
					failed = context.Cause(ctx)
				} else {
					failed = c.handle(ctx, tx, events)
				}
				return failed
			})
		})(ctx, tx, events)
	})
	return cmp.Or(p.broken(err), failed, err)
}

// handle calls the handler. One that takes a single event is given one.
func (c *consumerLoop) handle(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
	if c.unit.bulk != nil {
		return recovering(func() error { return c.unit.bulk.HandleBatch(ctx, tx, events) })
	}
	return handleOne(ctx, c.unit.consumer, tx, events[0])
}

// handleOne is recovering, without a closure for every event.
func handleOne(ctx context.Context, c consumer.Consumer, tx *sql.Tx, event store.PersistedEvent) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &observe.PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return errtext.Sound(c.Handle(ctx, tx, event))
}

// recovering turns a panic into an error. The error of f is sound: errors.Is and
// the like call its methods in the worker's goroutines.
func recovering(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &observe.PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return errtext.Sound(f())
}

// transaction is a batch's, with what shows whether it still is.
type transaction struct {
	*sql.Tx
	ctx      context.Context // rolls it back when it ends
	conn     *sql.Conn
	moved    progress.Moved         // the row, by its guard
	marked   bool                   // the driver shows its end, also if another follows at once
	call     []store.PersistedEvent // that the handler was given last
	inFlight atomic.Int64           // position of the first of them, for other goroutines, until the call returns; 0: there is none
	called   time.Time              // when
	until    time.Time              // after it no further event begins; zero: no bound
	handled  int64                  // position of the last event that was handled; 0: none
	through  int64                  // handled, if the batch ends early; 0: it does not
	intact   bool                   // the driver shows that no call has ended it
	ended    bool                   // or that one has
	fault    []store.PersistedEvent // the same, if the transaction ended in that call
}

// calls records what the handler is given next, and when.
func (t *transaction) calls(events []store.PersistedEvent, now time.Time) {
	t.call, t.called, t.intact = events, now, false
	t.inFlight.Store(events[0].GlobalPosition)
}

// errGone is what a handler fails with that returned nil on a lost connection.
var errGone = fmt.Errorf("the connection was lost in the handler: %w", driver.ErrBadConn)

// check looks whether the handler, which returned err, left the transaction as
// it must. That costs no round trip. Where the driver does not show it, the
// checkpoint's row tells afterwards, see lastBatch.
func (t *transaction) check(err error) error {
	t.inFlight.Store(0)
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
