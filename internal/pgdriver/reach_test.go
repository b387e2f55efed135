package pgdriver_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgfrontier/worker/internal/pgdriver"
)

// refusing makes no connection.
type refusing struct{ err error }

func (r refusing) Connect(context.Context) (driver.Conn, error) { return nil, r.err }
func (refusing) Driver() driver.Driver                          { return nil }

// A database that cannot be reached is away, by whatever time-out that was found out. One that
// refuses, or a program that stops, is not.
func TestIsAway(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		away bool
	}{
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", os.ErrNotExist)}, true},
		{&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, true},
		{fmt.Errorf("timeout: %w", context.DeadlineExceeded), true},
		{io.ErrUnexpectedEOF, true},
		{&pgconn.PgError{Code: "57P03"}, true},
		{&pgconn.PgError{Code: "53300"}, true},
		{&pgconn.PgError{Code: "28P01"}, false},
		{&pgconn.PgError{Code: "3D000"}, false},
		{errors.New("tls: failed to verify certificate"), false},
	} {
		db := sql.OpenDB(refusing{c.err})
		err := pgdriver.AnswersWithin(t.Context(), db, time.Minute)
		if got := pgdriver.IsAway(err); got != c.away || !errors.Is(err, c.err) {
			t.Errorf("%v: it is away: %v, want %v; it says %v", c.err, got, c.away, err)
		}
		_ = db.Close()
		if err := pgdriver.AnswersWithin(t.Context(), db, time.Minute); pgdriver.IsAway(err) {
			t.Errorf("a closed pool is away: %v", err)
		}
	}
	if pgdriver.IsAway(nil) {
		t.Error("a database that answers is away")
	}
}
