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

// ErrLeftOpen: a connection of the pool has an open transaction, begun by an earlier user of
// the connection. Every later statement would become part of that transaction.
var ErrLeftOpen = errors.New(`a connection of the pool had a transaction open, and was closed: begin transactions with BeginTx, not by sending BEGIN, and end each of them`)

// ErrEncoding: the session has another client_encoding than Go's strings.
var ErrEncoding = errors.New("names and types with other letters than ASCII would be read and written wrongly: set client_encoding=UTF8 in the connection string, or for the role or the database")

// Pool is a pool each of whose connections has no transaction open when it is taken, and
// has the encoding of Go's strings and times that the driver can read. A connection that is
// not like that is closed; the error is then [ErrLeftOpen], [ErrEncoding] or [ErrFormats].
//
// pgx closes a connection with an open transaction by itself. lib/pq, as most drivers,
// gives it to the next caller; with such a driver each connection that is taken costs a
// round trip.
type Pool struct {
	*sql.DB
	Plans *Plans // that its statements keep; nil: none is watched
}

// NewPool returns a Pool for statements that are sent again and again.
func NewPool(db *sql.DB) Pool { return Pool{db, new(Plans)} }

// on sends statements through a connection.
func (p Pool) on(conn *sql.Conn) store.Querier {
	if p.Plans == nil {
		return conn
	}
	return p.Plans.On(conn, conn)
}

// Conn is that of [sql.DB]. It passes over connections that have died in the pool. Most drivers
// do not look at them, so what asks for a transaction finds out; pgx looks after a second of rest.
func (p Pool) Conn(ctx context.Context) (*sql.Conn, error) {
	for start, idle := time.Now(), -1; ; idle-- {
		conn, err := p.DB.Conn(ctx)
		if err != nil {
			return nil, err
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

// passDead is for how long Conn passes over dead connections: each fails at once, unless the
// network is silent.
const passDead = 5 * time.Second

// IsClosed reports whether somebody has closed the pool. It asks without taking a connection.
func (p Pool) IsClosed() bool {
	_, err := p.DB.Conn(ended{context.Background(), context.Canceled})
	return IsPoolClosed(err)
}

// closeLeftOpen closes all idle connections that have an open transaction. Otherwise each of
// them would cost its next user a failure.
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
		defer conn.Close() // not before the others were taken: it would be given out again
	}
}

// ExecContext is that of [sql.DB].
func (p Pool) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	conn, err := p.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // as after a statement of sql.DB
	return p.on(conn).ExecContext(ctx, query, args...)
}

// QueryContext is that of [sql.DB].
func (p Pool) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	conn, err := p.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer closeAfter(conn)
	return p.on(conn).QueryContext(ctx, query, args...)
}

// QueryRowContext is that of [sql.DB].
func (p Pool) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	conn, err := p.Conn(ctx)
	if err != nil {
		return FailedRow(ctx, p.DB, err)
	}
	defer closeAfter(conn)
	return p.on(conn).QueryRowContext(ctx, query, args...)
}

// BeginTx is that of [sql.DB].
func (p Pool) BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) {
	conn, err := p.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer closeAfter(conn)
	return conn.BeginTx(ctx, opts)
}

// closeAfter gives a connection back once its rows are closed, or its transaction has
// ended: that is what Close waits for. The goroutine ends with them.
func closeAfter(conn *sql.Conn) { go func() { _ = conn.Close() }() }

// FailedRow makes a Row of an error, which only database/sql can do.
func FailedRow(ctx context.Context, db *sql.DB, err error) *sql.Row {
	return db.QueryRowContext(ended{ctx, err}, ``)
}

// ended is a context that has ended with an error. database/sql takes no connection for
// it.
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

// checkSession asks pgx what the server has reported to it, and otherwise the server.
func checkSession(ctx context.Context, conn *sql.Conn) error {
	status, encoding, unread := TxUnknown, "", "" // a DateStyle that the driver cannot read
	if err := raw(conn, func(driverConn any) error {
		if c, ok := driverConn.(*stdlib.Conn); ok {
			pg := c.Conn().PgConn()
			if pg.IsClosed() {
				return driver.ErrBadConn
			}
			status, encoding = TxStatus(pg.TxStatus()), pg.ParameterStatus("client_encoding")
			// Config copies all of it: it is asked last.
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
		if status, encoding, err = askSession(ctx, conn); err != nil {
			return err
		}
	}
	switch {
	case status != TxNone:
		return ErrLeftOpen
	case encoding != "UTF8" && encoding != "SQL_ASCII" && encoding != "": // SQL_ASCII: bytes as they are; "": not told
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

// askSession asks the server. Outside a transaction, each statement has a transaction of
// its own, which begins with it. The protocol may have begun it a moment before, so what
// differs is asked again: in an open transaction, now() stands still.
func askSession(ctx context.Context, conn *sql.Conn) (status TxStatus, encoding string, err error) {
	const query = `SELECT pg_catalog.now() = pg_catalog.statement_timestamp(), pg_catalog.now()::text, pg_catalog.current_setting('client_encoding')`
	var before string
	for range 2 {
		var began bool
		var now string
		switch err := conn.QueryRowContext(ctx, query).Scan(&began, &now, &encoding); {
		case SQLState(err) == "25P02": // in_failed_sql_transaction
			return TxAborted, "UTF8", nil
		case err != nil:
			return TxUnknown, "", fmt.Errorf("look whether a transaction is open: %w", err)
		case began:
			return TxNone, encoding, nil
		case now == before:
			return TxOpen, encoding, nil
		}
		before = now
	}
	return TxNone, encoding, nil
}
