package pgdriver

import (
	"database/sql"
	"database/sql/driver"
	"errors"

	"github.com/jackc/pgx/v5/stdlib"
)

// Discard closes a connection instead of giving it back to its pool.
func Discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = conn.Close()
}

// IsGone reports whether the connection is lost, as far as the driver knows.
func IsGone(conn *sql.Conn) bool {
	gone := false
	err := conn.Raw(func(driverConn any) error {
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

// TxStatus is the state of a session's transaction, as the server reports it
// after each statement.
type TxStatus byte

// The states. TxUnknown: the driver does not show it.
const (
	TxUnknown TxStatus = 0
	TxNone    TxStatus = 'I'
	TxOpen    TxStatus = 'T'
	TxAborted TxStatus = 'E'
)

// Status returns the state of conn's transaction without asking the server.
// lib/pq does not show it.
func Status(conn *sql.Conn) TxStatus {
	status := TxUnknown
	_ = conn.Raw(func(driverConn any) error { // a lost connection has none
		if c, ok := driverConn.(*stdlib.Conn); ok {
			status = TxStatus(c.Conn().PgConn().TxStatus())
		}
		return nil
	})
	return status
}
