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
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/refusal"
)

// refusing is a connector that always fails.
type refusing struct{ err error }

func (r refusing) Connect(context.Context) (driver.Conn, error) { return nil, r.err }
func (refusing) Driver() driver.Driver                          { return nil }

// A database that cannot be reached is away, whichever time-out detected it. A refusal, or the
// end of the program, does not count as away. Unanswered says which of them it is.
func TestIsAway(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		away bool
		says string
	}{
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", os.ErrNotExist)}, true, "does not answer: check the address"},
		{&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, true, "does not answer: check the address"},
		{fmt.Errorf("timeout: %w", context.DeadlineExceeded), true, "does not answer: check the address"},
		{io.ErrUnexpectedEOF, true, "does not answer: check the address"},
		{&pgconn.PgError{Code: "57P03"}, true, "answers with an error"},
		{&pgconn.PgError{Code: "53300"}, true, "answers with an error"},
		{fmt.Errorf("ValidateConnect failed: %w", pgconn.ErrReadOnlyConnection), true, "answers with an error"},
		{fmt.Errorf("ValidateConnect failed: %w", pgconn.ErrStandbyConnection), true, "answers with an error"},
		{fmt.Errorf("pq: %w", errors.New("session is read-only")), true, "answers with an error"},
		{&pgconn.PgError{Code: "28P01"}, false, "answers with an error"},
		{&pgconn.PgError{Code: "3D000"}, false, "answers with an error"},
		{errors.New("tls: failed to verify certificate"), false, "cannot be used"},
	} {
		db := sql.OpenDB(refusing{c.err})
		err := pgdriver.AnswersWithin(t.Context(), db, time.Minute)
		if got := pgdriver.IsAway(err); got != c.away || !errors.Is(err, c.err) {
			t.Errorf("%v: it is away: %v, want %v; it says %v", c.err, got, c.away, err)
		}
		if got := pgdriver.Unanswered(err); !strings.HasPrefix(got.Error(), "the database "+c.says) || !errors.Is(got, c.err) {
			t.Errorf("%v: Unanswered says %v, want %s", c.err, got, c.says)
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

// Reach repeats a step whose own bound has passed, but not a step that the program ended.
func TestReachRepeatsStepWithoutAnswer(t *testing.T) {
	t.Parallel()
	tries, reported := 0, 0
	step := func(ctx context.Context) error {
		if tries++; tries > 1 {
			return nil
		}
		bound, cancel := context.WithTimeout(ctx, 0)
		defer cancel()
		return fmt.Errorf("look for the table: %w", bound.Err())
	}
	if err := pgdriver.Reach(t.Context(), "test", 0, func(error) { reported++ }, step); err != nil || tries != 2 || reported != 1 {
		t.Errorf("%d tries, %d told, %v", tries, reported, err)
	}
	ended, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	tries, reported = 0, 0
	if err := pgdriver.Reach(ended, "test", 0, func(error) { reported++ }, step); !errors.Is(err, context.DeadlineExceeded) || tries != 1 || reported != 0 {
		t.Errorf("ended: %d tries, %d told, %v", tries, reported, err)
	}
}

// The limit of Reach counts from the first try.
func TestReachGivesUpAfterLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		err := pgdriver.Reach(ctx, "test", time.Minute, func(error) {}, func(context.Context) error { return io.ErrUnexpectedEOF })
		if waited := time.Since(began); !errors.Is(err, refusal.ErrOutage) || waited < time.Minute || waited > 2*time.Minute {
			t.Errorf("after %v: %v", waited, err)
		}
	})
}

// Reach repeats a check that a time limit of the role ended, since the limit says nothing about
// the database.
func TestReachRepeatsCheckEndedByTimeLimit(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	db := d.OpenSet(t, "statement_timeout", "100ms")
	_, limited := db.ExecContext(t.Context(), `SELECT pg_sleep(600)`)
	if !pgdriver.IsTimeLimit(limited) {
		t.Fatal(limited)
	}
	err := pgdriver.Checked(t.Context(), "test", d.DB, func(context.Context) error { return fmt.Errorf("look for the table: %w", limited) })
	if !pgdriver.IsAway(err) || !strings.Contains(err.Error(), "statement_timeout") {
		t.Errorf("limited: %v", err)
	}
	err = pgdriver.Checked(t.Context(), "test", d.DB, func(context.Context) error { return errors.New("another") })
	if pgdriver.IsAway(err) || err.Error() != "another" {
		t.Errorf("refused: %v", err)
	}
}
