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

// raw is conn.Raw of a connection that database/sql may be closing meanwhile, as the end
// of a transaction's context does if the driver finds the connection lost. Raw may then
// dereference nil, before it calls f: raw returns sql.ErrConnDone.
func raw(conn *sql.Conn, f func(driverConn any) error) (err error) {
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

// Discard closes a connection instead of giving it back to its pool, nor to the pgxpool.Pool
// that the pool may have it from.
func Discard(conn *sql.Conn) {
	_ = raw(conn, func(driverConn any) error {
		if c, ok := driverConn.(*stdlib.Conn); ok {
			ctx, cancel := context.WithTimeout(context.Background(), goodbye)
			defer cancel()
			_ = c.Conn().Close(ctx) // it is closed in any case
		}
		return nil
	})
	giveUp(conn)
}

// giveUp makes the pool part with a connection: it closes it, or gives it back to another pool.
func giveUp(conn *sql.Conn) {
	_ = raw(conn, func(any) error { return driver.ErrBadConn })
	_ = conn.Close()
}

// goodbye bounds the last message to the server, as database/sql's driver of pgx does.
const goodbye = 5 * time.Second

// pgxConn is the connection behind conn, if that is pgx's.
func pgxConn(conn *sql.Conn) (pg *pgx.Conn) {
	_ = raw(conn, func(driverConn any) error { // a lost connection has none
		if c, ok := driverConn.(*stdlib.Conn); ok {
			pg = c.Conn()
		}
		return nil
	})
	return pg
}

// IsGone reports whether the connection is lost, as far as the driver knows.
func IsGone(conn *sql.Conn) bool {
	gone := false
	err := raw(conn, func(driverConn any) error {
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

// IsClosed reports whether somebody has called Close on a connection that has a
// transaction. Close waits for the end of that. If a statement runs on the
// connection, IsClosed gives up after a moment: false.
func IsClosed(conn *sql.Conn) bool {
	const moment = 100 * time.Millisecond
	closed := make(chan bool, 1)
	go func() { closed <- errors.Is(raw(conn, func(any) error { return nil }), sql.ErrConnDone) }()
	select {
	case yes := <-closed:
		return yes
	case <-time.After(moment):
		return false
	}
}

// TxStatus is the state of a session's transaction, as the server reports it
// after each statement.
type TxStatus byte

// The states. TxUnknown: the driver does not show it.
const (
	TxUnknown TxStatus = 0
	TxNone    TxStatus = 'I'
	TxOpen    TxStatus = 'T'
	TxAborted TxStatus = 'E'
	TxLost    TxStatus = 'L' // with its connection
)

// MarkTransaction is an SQL expression that marks the transaction it is part
// of. The setting is local to the transaction and changes nothing in it: it is
// the default of those that begin while it is set, and none can. From version
// 14 on the server reports it, and reports it again when a COMMIT or ROLLBACK
// takes it back, also if a transaction follows at once (AND CHAIN).
const MarkTransaction = `set_config('` + marker + `', 'on', true)`

const marker = "default_transaction_read_only"

// QueryRow asks for a row in tx, which conn has. It asks pgx itself if that is the
// driver, which costs less than database/sql.
func QueryRow(ctx context.Context, conn *sql.Conn, tx *sql.Tx, query string, into ...any) (err error) {
	asked := false
	err = raw(conn, func(driverConn any) error {
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

// Status returns the state of conn's transaction without asking the server, and
// reports whether it has the mark of MarkTransaction. lib/pq shows neither.
func Status(conn *sql.Conn) (status TxStatus, marked bool) {
	_ = raw(conn, func(driverConn any) error { // a lost connection has none
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

// IsDone reports whether tx was committed or rolled back through its own
// methods, whatever the driver, without asking the server.
func IsDone(tx *sql.Tx) bool {
	// No statement of another database belongs to tx. That tx has ended is
	// what database/sql objects to first.
	return errors.Is(tx.StmtContext(context.Background(), new(sql.Stmt)).Close(), sql.ErrTxDone)
}

// PID returns the process id of the server's session behind conn as the driver
// was told it. A proxy may have made it up. lib/pq does not show it: 0.
func PID(conn *sql.Conn) (pid int64) {
	_ = raw(conn, func(driverConn any) error { // a lost connection has none
		if c, ok := driverConn.(*stdlib.Conn); ok {
			pid = int64(c.Conn().PgConn().PID())
		}
		return nil
	})
	return pid
}

// Answers pings the database. Each idle connection of the pool may have died without
// anybody noticing, and fails once.
func Answers(ctx context.Context, db *sql.DB) (err error) {
	for idle := db.Stats().Idle; idle >= 0 && ctx.Err() == nil; idle-- {
		if err = db.PingContext(ctx); err == nil {
			return nil
		}
	}
	return err
}
