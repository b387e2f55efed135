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

// handleAll passes the events of a batch to the consumer, late events first. If it fails,
// it returns the event that failed, or nil if that is unknown. A call has events of one
// kind of delivery only.
func (c *consumerLoop) handleAll(ctx context.Context, t *transaction, w *work) (*store.PersistedEvent, error) {
	d := consumer.Delivery{Consumer: c.unit.consumerName, Partition: c.unit.slots.String(), Attempt: c.tally.Attempt()}
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
		n, replay, err := c.countAlike(w, rest[:n])
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

// forgetAggregate makes the consumer forget the aggregate of the first replayed event.
func (c *consumerLoop) forgetAggregate(ctx context.Context, t *transaction, first []store.PersistedEvent) error {
	t.calls(first, time.Now())
	return t.check(recovering(func() error {
		return c.unit.forgets.Forget(ctx, t.Tx, first[0].AggregateType, first[0].AggregateID)
	}))
}

// countAlike returns how many of the first events are replayed, or are not replayed, as the
// first event is. err concerns the event with index n.
func (c *consumerLoop) countAlike(w *work, events []store.PersistedEvent) (n int, replay bool, err error) {
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
		now, position := time.Now(), e.GlobalPosition // read before user code can change the event
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

// call calls the handler once, inside the middleware if one is set.
func (c *consumerLoop) call(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
	middleware := c.w.cfg.HandleMiddleware
	if middleware == nil {
		return c.handle(ctx, tx, events)
	}
	var p middlewareCall
	var failed error
	err := recovering(func() error {
		return middleware(func(ctx context.Context, _ *sql.Tx, _ []store.PersistedEvent) error {
			return p.run(ctx, func() error {
				if ctx.Err() != nil {
					failed = context.Cause(ctx)
				} else {
					failed = c.handle(ctx, tx, events)
				}
				return failed
			})
		})(ctx, tx, events)
	})
	return cmp.Or(p.end(err), failed, err)
}

// handle calls the handler. A handler of single events gets one event.
func (c *consumerLoop) handle(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
	if c.unit.bulk != nil {
		return recovering(func() error { return c.unit.bulk.HandleBatch(ctx, tx, events) })
	}
	return handleOne(ctx, c.unit.consumer, tx, events[0])
}

// handleOne calls Handle and recovers a panic, without a closure for each event.
func handleOne(ctx context.Context, c consumer.Consumer, tx *sql.Tx, event store.PersistedEvent) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &observe.PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return errtext.Sound(c.Handle(ctx, tx, event))
}

// recovering calls f and turns a panic into an error. Methods of f's error, as errors.Is
// calls them, cannot panic in the worker's goroutines.
func recovering(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &observe.PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return errtext.Sound(f())
}

// transaction is a batch's transaction, with what the driver shows about it.
type transaction struct {
	*sql.Tx
	ctx      context.Context // its end rolls the transaction back
	conn     *sql.Conn
	moved    progress.Moved         // the row as the guard wrote it
	marked   bool                   // the driver shows the transaction's end, also if another transaction follows at once
	call     []store.PersistedEvent // the events of the last call of the handler
	inFlight atomic.Int64           // position of the first of them until the call returns, for other goroutines; 0: none
	called   time.Time              // when the call began
	until    time.Time              // no further event begins after it; zero: no bound
	handled  int64                  // position of the last handled event; 0: none
	through  int64                  // the position that a shortened batch has handled; 0: the batch is not shortened
	intact   bool                   // the driver shows that no call has ended the transaction
	ended    bool                   // the driver shows that a call has ended the transaction
	fault    []store.PersistedEvent // the events of the call in which the transaction ended
}

// calls records the events of the next call of the handler, and its time.
func (t *transaction) calls(events []store.PersistedEvent, now time.Time) {
	t.call, t.called, t.intact = events, now, false
	t.inFlight.Store(events[0].GlobalPosition)
}

// errGone is the failure of a handler that returned nil on a lost connection.
var errGone = fmt.Errorf("the connection was lost in the handler: %w", driver.ErrBadConn)

// check checks that the handler, which returned err, left the transaction open. The check
// costs no round trip. Where the driver does not show the transaction's state, the
// checkpoint's row shows it afterwards, see lastBatch.
func (t *transaction) check(err error) error {
	t.inFlight.Store(0)
	status, marked := pgdriver.Status(t.conn)
	switch {
	case status == pgdriver.TxOpen && (marked || !t.marked):
		t.intact = marked
		return err
	case err == nil && pgdriver.IsGone(t.conn):
		err = errGone // this event is not finished, and no event after it may begin
	case status == pgdriver.TxUnknown && !t.marked && !pgdriver.IsDone(t.Tx):
		return err
	}
	if t.marked && !(marked && (status == pgdriver.TxOpen || status == pgdriver.TxLost)) {
		t.fault = t.call // the events of the fault, if there is one
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
			return cmp.Or(err, failed) // the transaction's outcome is unknown
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

// isAnother asks the server whether the transaction without its mark is another than the
// guard's. RESET ALL removes the mark, too.
func (t *transaction) isAnother() (bool, error) {
	var id string
	err := t.QueryRowContext(t.ctx, `SELECT coalesce(pg_current_xact_id_if_assigned()::xid::text, '')`).Scan(&id)
	return id != t.moved.Author, err
}
