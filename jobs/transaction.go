package jobs

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// transaction is that of a call of a handler.
type transaction struct {
	conn *sql.Conn
	tx   *sql.Tx
	free func() // gives its place in the pool back

	shown bool  // the driver shows whether it still has its mark
	began int64 // by the server's clock, in microseconds
	role  string
}

// takeTx takes a connection, once it is this call's turn: the transactions of
// handlers leave the worker some. A job that waits is not yet running.
func (w *Worker) takeTx(ctx context.Context) (*transaction, error) {
	t := &transaction{free: func() {}}
	if w.txs != nil {
		select {
		case w.txs <- struct{}{}:
			t.free = func() { <-w.txs }
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, w.limit)
	defer cancel()
	defer time.AfterFunc(w.limit/2, w.sweepNow.Send).Stop()
	conn, err := w.db.Conn(ctx)
	if err != nil {
		t.free()
		return nil, fmt.Errorf("take a connection: %w", err)
	}
	t.conn = conn
	return t, nil
}

func (t *transaction) begin(ctx context.Context) (err error) {
	t.tx, err = t.conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return fmt.Errorf("begin a transaction: %w", err)
	}
	if err = pgdriver.QueryRow(ctx, t.conn, t.tx, markSQL, &t.began, &t.role); err != nil {
		return fmt.Errorf("begin a transaction: mark it: %w", err)
	}
	_, t.shown = pgdriver.Status(t.conn)
	return nil
}

// handle is what the handler is given.
func (t *transaction) handle() *sql.Tx {
	if t == nil {
		return nil
	}
	return t.tx
}

func (t *transaction) rollback() {
	if t != nil && t.tx != nil {
		_ = t.tx.Rollback()
	}
}

// close gives the connection back. It may be called again.
func (t *transaction) close() {
	if t.conn == nil {
		return
	}
	t.rollback()
	if pgdriver.IsGone(t.conn) {
		pgdriver.Discard(t.conn)
	}
	_ = t.conn.Close()
	t.conn = nil
	t.free()
}

// errTxAborted: PostgreSQL commits nothing of such a transaction.
var errTxAborted = errors.New("a statement of the handler has failed and aborted its transaction, yet the handler returned nil: it must return that error, or use a savepoint")

// txEnd is how a transaction has ended.
type txEnd int

const (
	txRolledBack txEnd = iota
	txCommitted
	txDoubtful // it may have been committed
	txLost     // with its connection
)

// end completes and commits if err, which the handler has returned, is nil, and
// rolls back otherwise. It returns why it did not commit.
func (t *transaction) end(ctx context.Context, err error, complete func(context.Context) error) (txEnd, error) {
	if t.tx == nil {
		return txLost, err // it did not begin
	}
	if ended := t.wasEnded(ctx); ended != nil {
		return txRolledBack, ended
	}
	if err == nil {
		if err = t.resetRole(ctx); err == nil {
			err = complete(ctx)
		}
		if pgdriver.SQLState(err) == pgdriver.InFailedTransaction {
			err = fmt.Errorf("%w: %w", errTxAborted, err)
		}
	}
	if err != nil {
		end := txRolledBack
		if pgdriver.IsGone(t.conn) {
			end = txLost
		}
		t.rollback()
		return end, err
	}
	if err = t.tx.Commit(); err == nil {
		return txCommitted, nil
	}
	if pgdriver.IsUnanswered(err) {
		return txDoubtful, fmt.Errorf("commit: %w", err)
	}
	return txRolledBack, fmt.Errorf("commit: %w", err)
}

// resetRole gives the transaction the role back with which it began. The handler may have
// changed it by SET LOCAL ROLE, to one that may not write the tables of jobs.
func (t *transaction) resetRole(ctx context.Context) error {
	if _, err := t.tx.ExecContext(ctx, `SELECT set_config('role', $1::text, true)`, t.role); err != nil {
		return fmt.Errorf("set the role back to %s, with which the transaction began: %w", t.role, err)
	}
	return nil
}

// beganAt is an SQL expression for the begin of the transaction it is part of. Another one,
// also one that follows at once (AND CHAIN), has another.
var beganAt = pgdriver.Microseconds(`transaction_timestamp()`)

// markSQL marks the transaction, and asks when it began and with which role.
var markSQL = `SELECT ` + beganAt + `, current_setting('role') WHERE ` + pgdriver.MarkTransaction + ` = 'on'`

// wasEnded reports that the handler has ended the transaction itself. What it wrote may
// stay, so that the job must not run again. A mark that the driver shows proves that it has
// not. Otherwise the server tells, unless the transaction is aborted, which takes the mark
// back: then nobody can tell.
func (t *transaction) wasEnded(ctx context.Context) error {
	status, marked := pgdriver.Status(t.conn)
	ended := pgdriver.IsDone(t.tx) && ctx.Err() == nil || status == pgdriver.TxNone
	switch {
	case ended, t.shown && marked, status == pgdriver.TxLost, status == pgdriver.TxAborted:
	default:
		var began int64
		err := t.tx.QueryRowContext(ctx, `SELECT `+beganAt).Scan(&began)
		ended = err == nil && began != t.began || errors.Is(err, sql.ErrTxDone) && ctx.Err() == nil
	}
	if !ended || ctx.Err() != nil {
		return nil
	}
	return coded(CodeTxEnded, true, ErrTxEnded, "%v", errtext.Of(ErrTxEnded))
}
