package pgdriver

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/store"
)

// ErrLeftOpen reports that a connection of the pool had an open transaction of an earlier user.
// Every later statement would become part of that transaction.
var ErrLeftOpen = errors.New(`a connection of the pool had a transaction open, and was closed: begin transactions with BeginTx, not by sending BEGIN, and end each of them`)

// ErrEncoding reports that the session's client_encoding is not that of Go's strings.
var ErrEncoding = errors.New("names and types with other letters than ASCII would be read and written wrongly: set client_encoding=UTF8 in the connection string, or for the role or the database")

// Pool is a pool whose connections are checked when they are taken. A connection must have no
// open transaction and the encoding of Go's strings. The driver must be able to read its format
// of times. Pool closes any other connection, and returns [ErrLeftOpen], [ErrEncoding] or
// [ErrFormats].
//
// pgx itself closes a connection with an open transaction. lib/pq and most other drivers give
// it to the next caller. With such a driver, each check costs a round trip.
type Pool struct {
	*sql.DB
	Plans *Plans // plans of its statements; nil: not watched
}

// NewPool returns a Pool for statements that are executed repeatedly.
func NewPool(db *sql.DB) Pool { return Pool{db, new(Plans)} }

// on returns a Querier that sends statements through a connection.
func (p Pool) on(conn *sql.Conn) store.Querier { return p.Plans.On(conn, conn) }

// Conn is [sql.DB.Conn]. It skips connections that have died in the pool. Most drivers do not
// check a connection before its use; pgx does after a second of rest. So the check of the
// session finds the dead ones.
func (p Pool) Conn(ctx context.Context) (*sql.Conn, error) {
	for start, idle := time.Now(), -1; ; idle-- {
		conn, err := p.DB.Conn(ctx)
		if err != nil {
			return nil, p.withTaken(err)
		}
		if err = checkSession(ctx, conn); err == nil {
			return conn, nil
		}
		Discard(conn)
		if errors.Is(err, ErrLeftOpen) {
			p.closeLeftOpen(ctx)
		}
		if !IsConnectionLoss(err) || ctx.Err() != nil || time.Since(start) > passDead {
			return nil, err
		}
		if idle < 0 {
			idle = p.Stats().Idle + 1
		} else if idle == 0 {
			return nil, err
		}
	}
}

// withTaken adds to the error of a connection that did not come in time why it may not have come. The
// waits of database/sql and pgxpool end with the context's own error, and a silent server with
// another. A pool of database/sql that keeps no connection has them from another pool, see
// [Pool.FindLender].
func (p Pool) withTaken(err error) error {
	s := p.Stats()
	switch {
	case err != context.DeadlineExceeded || s.MaxOpenConnections <= 0:
		return err
	case s.InUse >= s.MaxOpenConnections:
		return fmt.Errorf("all %d connections of db are taken, raise db.SetMaxOpenConns: %w", s.MaxOpenConnections, err)
	case s.MaxIdleClosed > 0 && s.Idle == 0:
		return fmt.Errorf("db has or awaits %d of %d connections: a pgxpool.Pool that lends them must have MaxConns above that limit, see pgxtx.DB: %w", s.InUse, s.MaxOpenConnections, err)
	}
	return err
}

// IsClosed reports whether the pool was closed. It takes no connection.
func (p Pool) IsClosed() bool {
	_, err := p.DB.Conn(ended{context.Background(), context.Canceled})
	return IsPoolClosed(err)
}

// closeLeftOpen closes all idle connections that have an open transaction. Otherwise each of
// them would fail its next user.
func (p Pool) closeLeftOpen(ctx context.Context) {
	for range p.Stats().Idle {
		conn, err := p.DB.Conn(ctx)
		if err != nil {
			return
		}
		if checkSession(ctx, conn) != nil {
			Discard(conn)
			continue
		}
		defer conn.Close() // after the others were taken, since a returned connection would be taken again
	}
}

// ExecContext is [sql.DB.ExecContext].
func (p Pool) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	conn, err := p.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // as sql.DB does after a statement
	return p.on(conn).ExecContext(ctx, query, args...)
}

// QueryContext is [sql.DB.QueryContext].
func (p Pool) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	conn, err := p.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer closeAfter(conn)
	return p.on(conn).QueryContext(ctx, query, args...)
}

// QueryRowContext is [sql.DB.QueryRowContext].
func (p Pool) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	conn, err := p.Conn(ctx)
	if err != nil {
		return FailedRow(ctx, p.DB, err)
	}
	defer closeAfter(conn)
	return p.on(conn).QueryRowContext(ctx, query, args...)
}

// BeginTx is [sql.DB.BeginTx].
func (p Pool) BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) {
	conn, err := p.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer closeAfter(conn)
	return conn.BeginTx(ctx, opts)
}

// closeAfter returns a connection to its pool when its rows are closed or its transaction has
// ended. Close waits for either. The goroutine then ends.
func closeAfter(conn *sql.Conn) { go func() { _ = conn.Close() }() }

// FailedRow returns a Row with an error. Only database/sql can create one.
func FailedRow(ctx context.Context, db *sql.DB, err error) *sql.Row {
	return db.QueryRowContext(ended{ctx, err}, ``)
}

// ended is a context that has ended with an error. database/sql takes no connection for such a
// context.
type ended struct {
	context.Context
	err error
}

func (e ended) Err() error { return e.err }

func (e ended) Done() <-chan struct{} { return closed }

var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// checkSession checks the session of conn. For pgx, it reads the parameters that the server has
// reported. For other drivers, it queries the server.
func checkSession(ctx context.Context, conn *sql.Conn) error {
	status, encoding, unread := TxUnknown, "", "" // unread is a DateStyle that the driver cannot read
	if err := Raw(conn, func(driverConn any) error {
		if c, ok := driverConn.(*stdlib.Conn); ok {
			pg := c.Conn().PgConn()
			if pg.IsClosed() {
				return driver.ErrBadConn
			}
			status, encoding = TxStatus(pg.TxStatus()), pg.ParameterStatus("client_encoding")
			// Config copies its whole value, so it is called last.
			if style := pg.ParameterStatus("DateStyle"); !strings.HasPrefix(style, "ISO") && isSentText(c.Conn().Config().DefaultQueryExecMode) {
				unread = style
			}
		}
		return nil
	}); err != nil {
		return err
	}
	if status == TxUnknown {
		var err error
		if status, encoding, err = querySession(ctx, conn); err != nil {
			return err
		}
	}
	switch {
	case status != TxNone:
		return ErrLeftOpen
	case encoding != "UTF8" && encoding != "SQL_ASCII" && encoding != "": // SQL_ASCII: unconverted bytes; "": not reported
		return fmt.Errorf("client_encoding is %s: %w", errtext.Value(encoding), ErrEncoding)
	case unread != "":
		return fmt.Errorf("DateStyle is %s: %w", errtext.Value(unread), ErrFormats)
	}
	return nil
}

// isSentText reports whether the server sends the values of results as text.
func isSentText(mode pgx.QueryExecMode) bool {
	return mode == pgx.QueryExecModeExec || mode == pgx.QueryExecModeSimpleProtocol
}

// querySession queries the server. Outside of a transaction, each statement has its own
// transaction, which starts with the statement. The protocol may start it a moment earlier. If
// the times differ, querySession queries again: in an open transaction, now() does not change.
func querySession(ctx context.Context, conn *sql.Conn) (status TxStatus, encoding string, err error) {
	const query = `SELECT pg_catalog.now() = pg_catalog.statement_timestamp(), pg_catalog.now()::text, pg_catalog.current_setting('client_encoding')`
	var before string
	for range 2 {
		var began bool
		var now string
		switch err := conn.QueryRowContext(ctx, query).Scan(&began, &now, &encoding); {
		case SQLState(err) == "25P02": // in_failed_sql_transaction
			return TxAborted, "UTF8", nil
		case err != nil:
			return TxUnknown, "", fmt.Errorf("read whether a transaction is open: %w", err)
		case began:
			return TxNone, encoding, nil
		case now == before:
			return TxOpen, encoding, nil
		}
		before = now
	}
	return TxNone, encoding, nil
}
