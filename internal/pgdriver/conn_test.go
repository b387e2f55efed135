package pgdriver_test

import (
	"database/sql"
	"testing"

	"github.com/pgfrontier/worker/internal/pgdriver"
)

// database/sql removes the driver's connection from a Conn that it closes before it marks the
// Conn as closed. In between, the Conn has no connection, as here. The Conn is gone, and has no
// transaction.
func TestConnBeingClosed(t *testing.T) {
	conn := new(sql.Conn)
	if !pgdriver.IsGone(conn) {
		t.Error("it is not gone")
	}
	if status, marked := pgdriver.Status(conn); status != 0 || marked {
		t.Errorf("its transaction: %v, marked: %v", status, marked)
	}
	if pid := pgdriver.PID(conn); pid != 0 {
		t.Errorf("its session has the pid %d", pid)
	}
}
