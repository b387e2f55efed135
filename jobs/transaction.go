package jobs

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pgfrontier/worker/internal/delivery"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// transaction is the transaction of a handler's call.
type transaction struct {
	conn *sql.Conn
	tx   *sql.Tx
	free func() // frees its place in the pool

	shown bool  // the driver shows whether the transaction still has its mark
	began int64 // by the server's clock, in microseconds
	role  string
}

// takeTx takes a connection for a handler's transaction. It waits for its turn, so that the worker
// keeps the connections of reserve. A job that waits here does not run yet.
func (s *calls) takeTx(ctx context.Context) (*transaction, error) {
	t := &transaction{free: func() {}}
	if s.txs != nil {
		select {
		case s.txs <- struct{}{}:
			t.free = func() { <-s.txs }
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	defer time.AfterFunc(s.limit/2, s.pool.SweepNow.Send).Stop()
	conn, err := s.db.Conn(ctx)
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

// handler returns the context and the transaction that the handler gets.
func (t *transaction) handler(ctx context.Context) (context.Context, *sql.Tx) {
	if t == nil {
		return ctx, nil
	}
	return delivery.WithConn(ctx, delivery.LenderOf(t.conn)), t.tx // a handler that is given up may ask for it after close
}

func (t *transaction) rollback() {
	if t != nil && t.tx != nil {
		_ = t.tx.Rollback()
	}
}

// close returns the connection to the pool. close may be called again.
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

// errRowsOpen reports that a driver has not sent a statement. The connection is not lost.
var errRowsOpen = errors.New("the handler left Rows open: close them before it returns, as by a deferred Close")

// txEnd is how a transaction has ended.
type txEnd int

const (
	txRolledBack txEnd = iota
	txCommitted
	txDoubtful // the commit got no answer
	txLost     // the connection was lost
)

// end ends the transaction after the handler has returned err. If err is nil, end completes the
// jobs and commits; otherwise it rolls back. It returns why it did not commit.
func (t *transaction) end(ctx context.Context, err error, complete func(context.Context) error) (txEnd, error) {
	if t.tx == nil {
		return txLost, err // the transaction did not begin
	}
	if ended := t.wasEnded(ctx); ended != nil {
		return txRolledBack, ended
	}
	if err == nil {
		if err = t.resetRole(ctx); err == nil {
			err = complete(ctx)
		}
		switch {
		case pgdriver.SQLState(err) == pgdriver.InFailedTransaction:
			err = fmt.Errorf("%w: %w", pgdriver.ErrTxAborted, err)
		case err != nil && strings.Contains(err.Error(), "query being processed"), errors.Is(err, driver.ErrBadConn) && !pgdriver.IsGone(t.conn): // lib/pq, pgx
			err = fmt.Errorf("%w: %w", errRowsOpen, err)
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

// resetRole sets the role back to the role at the begin of the transaction. The handler may have
// changed the role by SET LOCAL ROLE, to one that may not write the tables of jobs.
func (t *transaction) resetRole(ctx context.Context) error {
	if _, err := t.tx.ExecContext(ctx, `SELECT set_config('role', $1::text, true)`, t.role); err != nil {
		return fmt.Errorf("set the role back to %s, with which the transaction began: %w", t.role, err)
	}
	return nil
}

// beganAt is an SQL expression for the begin of the current transaction. Each transaction has its
// own value, also one that follows at once (AND CHAIN).
var beganAt = pgdriver.Microseconds(`transaction_timestamp()`)

// markSQL marks the transaction, and reads its begin and its role.
var markSQL = `SELECT ` + beganAt + `, current_setting('role') WHERE ` + pgdriver.MarkTransaction + ` = 'on'`

// wasEnded returns an error if the handler has ended the transaction itself. The writes of the
// handler may be committed, so the job must not run again. If the driver shows the mark, the
// handler has not ended the transaction. Otherwise the begin on the server decides. An aborted
// transaction loses the mark, and the server cannot be asked: then wasEnded returns nil.
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
