package pgdriver

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// Raw is conn.Raw, safe while database/sql closes the connection. database/sql does so if a
// transaction's context ends and the driver finds the connection lost. conn.Raw may then
// dereference nil, before it calls f. Raw returns sql.ErrConnDone instead.
func Raw(conn *sql.Conn, f func(driverConn any) error) (err error) {
	called := false
	defer func() {
		if !called && recover() != nil {
			err = sql.ErrConnDone
		}
	}()
	return conn.Raw(func(driverConn any) error {
		called = true
		return f(driverConn)
	})
}

// Discard closes a connection instead of returning it to its pool. If the pool has the
// connection from a pgxpool.Pool, Discard does not return it there either.
func Discard(conn *sql.Conn) {
	_ = Raw(conn, func(driverConn any) error {
		if c, ok := driverConn.(*stdlib.Conn); ok {
			ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
			defer cancel()
			_ = c.Conn().Close(ctx) // Close also closes the connection after an error
		}
		return nil
	})
	evict(conn)
}

// evict removes a connection from its pool. The pool closes the connection, or returns it to
// the pool that lent it.
func evict(conn *sql.Conn) {
	_ = Raw(conn, func(any) error { return driver.ErrBadConn })
	_ = conn.Close()
}

// closeTimeout bounds the last message to the server, in accordance with pgx's driver of
// database/sql.
const closeTimeout = 5 * time.Second

// pgxConn returns the pgx connection behind conn, or nil for another driver.
func pgxConn(conn *sql.Conn) (pg *pgx.Conn) {
	_ = Raw(conn, func(driverConn any) error { // fails if the connection is lost
		if c, ok := driverConn.(*stdlib.Conn); ok {
			pg = c.Conn()
		}
		return nil
	})
	return pg
}

// IsGone reports whether the driver knows that the connection is lost.
func IsGone(conn *sql.Conn) bool {
	gone := false
	err := Raw(conn, func(driverConn any) error {
		switch c := driverConn.(type) {
		case *stdlib.Conn:
			gone = c.Conn().IsClosed()
		case driver.Validator: // lib/pq
			gone = !c.IsValid()
		}
		return nil
	})
	return gone || errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone)
}

// IsClosed reports whether Close was called on a connection with a transaction. Close waits for
// the transaction's end. If a statement runs on the connection, IsClosed gives up after 100 ms
// and returns false.
func IsClosed(conn *sql.Conn) bool {
	const moment = 100 * time.Millisecond
	closed := make(chan bool, 1)
	go func() { closed <- errors.Is(Raw(conn, func(any) error { return nil }), sql.ErrConnDone) }()
	select {
	case yes := <-closed:
		return yes
	case <-time.After(moment):
		return false
	}
}

// TxStatus is the state of a session's transaction, as the server reports it after each statement.
type TxStatus byte

// TxUnknown means that the driver does not expose the state.
const (
	TxUnknown TxStatus = 0
	TxNone    TxStatus = 'I'
	TxOpen    TxStatus = 'T'
	TxAborted TxStatus = 'E'
	TxLost    TxStatus = 'L' // the connection is lost
)

// MarkTransaction is an SQL expression that marks its transaction. The setting is local to the
// transaction, and does not affect it: it is the default of later transactions. From version 14
// on, the server reports the setting. The server reports again when a COMMIT or ROLLBACK resets
// the setting, even with AND CHAIN.
const MarkTransaction = `set_config('` + marker + `', 'on', true)`

const marker = "default_transaction_read_only"

// QueryRow queries one row in tx, a transaction on conn. If the driver is pgx, QueryRow calls
// pgx directly, which costs less than database/sql.
func QueryRow(ctx context.Context, conn *sql.Conn, tx *sql.Tx, query string, into ...any) (err error) {
	asked := false
	err = Raw(conn, func(driverConn any) error {
		c, ok := driverConn.(*stdlib.Conn)
		if asked = ok; !ok {
			return nil
		}
		return c.Conn().QueryRow(ctx, query).Scan(into...)
	})
	if err == nil && !asked {
		err = tx.QueryRowContext(ctx, query).Scan(into...)
	}
	return err
}

// Status returns the state of conn's transaction without a round trip. marked reports whether
// the transaction has the mark of MarkTransaction. lib/pq exposes neither.
func Status(conn *sql.Conn) (status TxStatus, marked bool) {
	_ = Raw(conn, func(driverConn any) error { // fails if the connection is lost
		if c, ok := driverConn.(*stdlib.Conn); ok {
			pg := c.Conn().PgConn()
			status, marked = TxStatus(pg.TxStatus()), pg.ParameterStatus(marker) == "on"
			if pg.IsClosed() {
				status = TxLost
			}
		}
		return nil
	})
	return status, marked
}

// IsDone reports whether tx was committed or rolled back by its own methods, without a round
// trip. It works with every driver.
func IsDone(tx *sql.Tx) bool {
	// A statement of another database is never valid in tx. database/sql first checks whether
	// tx has ended.
	return errors.Is(tx.StmtContext(context.Background(), new(sql.Stmt)).Close(), sql.ErrTxDone)
}

// PID returns the process id of the server's session behind conn, as the driver received it. A
// proxy may have made it up. lib/pq does not expose it: 0.
func PID(conn *sql.Conn) (pid int64) {
	_ = Raw(conn, func(driverConn any) error { // fails if the connection is lost
		if c, ok := driverConn.(*stdlib.Conn); ok {
			pid = int64(c.Conn().PgConn().PID())
		}
		return nil
	})
	return pid
}

// Answers pings the database.
func Answers(ctx context.Context, db *sql.DB) error {
	return Living(ctx, db, func() error { return db.PingContext(ctx) })
}

// passDead is for how long Living and Pool.Conn skip dead connections. Each fails at once, unless the
// network is silent.
const passDead = 5 * time.Second

// Living calls f, which takes a connection of the pool, until f gets a living one. The server may
// have ended each open connection, and each of them fails one call. Living gives up after passDead.
func Living(ctx context.Context, db *sql.DB, f func() error) (err error) {
	start := time.Now()
	for open := db.Stats().OpenConnections; open >= 0 && ctx.Err() == nil && time.Since(start) < passDead; open-- {
		if err = f(); !IsConnectionLoss(err) {
			return err
		}
	}
	return err
}
