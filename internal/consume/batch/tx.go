package batch

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// Tx is a batch's transaction, with what the driver shows about it.
type Tx struct {
	*sql.Tx
	Conn    *sql.Conn
	Through int64                  // the position that a shortened batch has handled; 0: the batch is not shortened
	Intact  bool                   // the driver shows that no call has ended the transaction
	Ended   bool                   // the driver or the row shows that a call has ended the transaction
	Fault   []store.PersistedEvent // the events of the call in which the transaction ended

	ctx      context.Context        // its end rolls the transaction back
	author   string                 // the transaction's id
	marked   bool                   // the driver shows the transaction's end, also if another transaction follows at once
	call     []store.PersistedEvent // the events of the last call of the handler
	inFlight atomic.Int64           // position of the first of them until the call returns, for other goroutines; 0: none
	called   time.Time              // when the call began
	handled  int64                  // position of the last handled event; 0: none
}

// NewTx returns the transaction on conn that passed the guard. author is its id. The end of
// ctx rolls it back.
func NewTx(ctx context.Context, tx *sql.Tx, conn *sql.Conn, author string) *Tx {
	t := &Tx{Tx: tx, Conn: conn, Intact: true, ctx: ctx, author: author}
	_, t.marked = pgdriver.Status(conn)
	return t
}

// InFlight returns the position of the first event of the running call, or 0 if no call
// runs. Any goroutine may call it.
func (t *Tx) InFlight() int64 { return t.inFlight.Load() }

// begin records the events of the next call of the handler, and its time.
func (t *Tx) begin(events []store.PersistedEvent, now time.Time) {
	t.call, t.called, t.Intact = events, now, false
	t.inFlight.Store(events[0].GlobalPosition)
}

// check checks that the handler, which returned err, left the transaction open. The check
// costs no round trip. Where the driver does not show the transaction's state, the
// checkpoint's row shows it after the batch.
func (t *Tx) check(err error) error {
	t.inFlight.Store(0)
	status, marked := pgdriver.Status(t.Conn)
	switch {
	case status == pgdriver.TxOpen && (marked || !t.marked):
		t.Intact = marked
		return err
	case err == nil && pgdriver.IsGone(t.Conn):
		err = errGone // this event is not finished, and no event after it may begin
	case status == pgdriver.TxUnknown && !t.marked && !pgdriver.IsDone(t.Tx):
		return err
	}
	if t.marked && !(marked && (status == pgdriver.TxOpen || status == pgdriver.TxLost)) {
		t.Fault = t.call // the events of the fault, if there is one
	}
	switch {
	case status == pgdriver.TxAborted && err == nil:
		return pgdriver.ErrTxAborted
	case status == pgdriver.TxAborted:
		return err
	case pgdriver.IsGone(t.Conn):
		return cmp.Or(err, errGone)
	case t.ctx.Err() != nil:
		return cmp.Or(err, context.Cause(t.ctx))
	}
	if status == pgdriver.TxOpen {
		switch another, failed := t.isAnother(); {
		case failed != nil:
			return cmp.Or(err, failed) // the transaction's outcome is unknown
		case !another:
			t.Fault = nil
			return err
		}
	}
	t.Fault, t.Ended = t.call, true
	if err != nil {
		return fmt.Errorf("%w; the handler returned: %w", ErrTransactionEnded, err)
	}
	return ErrTransactionEnded
}

// isAnother asks the server whether the open transaction is another than the guard's. A missing
// mark is no proof: RESET ALL removes the mark, too.
func (t *Tx) isAnother() (bool, error) {
	var id string
	err := t.QueryRowContext(t.ctx, `SELECT coalesce(pg_current_xact_id_if_assigned()::xid::text, '')`).Scan(&id)
	return id != t.author, err
}
