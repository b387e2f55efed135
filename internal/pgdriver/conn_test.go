package pgdriver_test

import (
	"database/sql"
	"testing"

	"github.com/pgfrontier/worker/internal/pgdriver"
)

// database/sql takes the driver's connection away from a Conn that it closes, and looks
// whether it is closed before that: in between, what it has is a Conn without one, as
// here. It is gone, and has no transaction.
func TestConnThatIsBeingClosed(t *testing.T) {
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
