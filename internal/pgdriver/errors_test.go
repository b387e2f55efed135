package pgdriver_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Each predicate recognises its errors from either driver, and no others.
func TestPredicates(t *testing.T) {
	predicates := map[string]struct {
		is     func(error) bool
		states []string
	}{
		"IsConflict":           {pgdriver.IsConflict, []string{"40001", "40P01"}},
		"IsTransactionTimeout": {pgdriver.IsTransactionTimeout, []string{"25P03", "25P04"}},
		"IsOutOfResources":     {pgdriver.IsOutOfResources, []string{"53200", "58030"}},
		"IsConnectionLoss":     {pgdriver.IsConnectionLoss, []string{"08P01", "53300", "57P03"}},
		"IsUnanswered":         {pgdriver.IsUnanswered, []string{"08P01", "57P03"}},
		"IsStandby":            {pgdriver.IsStandby, []string{"0A000", "25006"}},
		"IsInvalidValue":       {pgdriver.IsInvalidValue, []string{"22012", "22P05"}},
		"IsUndefined":          {pgdriver.IsUndefined, []string{"42703", "42P01"}},
		"IsLostStatement":      {pgdriver.IsLostStatement, []string{"26000", "42P05"}},
		"IsMixedUp":            {pgdriver.IsMixedUp, []string{"08P01", "26000", "42P05"}},
	}
	states := []string{"42501"}
	for _, p := range predicates {
		states = append(states, p.states...)
	}
	d := pgtest.Empty(t)
	for driver, db := range map[string]*sql.DB{"pgx": d.DB, "lib/pq": d.OpenPQ(t)} {
		for _, state := range states {
			_, err := db.ExecContext(t.Context(), fmt.Sprintf(`DO $$BEGIN RAISE SQLSTATE '%s'; END$$`, state))
			if got := pgdriver.SQLState(err); got != state {
				t.Fatalf("%s: the state is %q (%v), want %s", driver, got, err, state)
			}
			for name, p := range predicates {
				if got, want := p.is(fmt.Errorf("wrapped: %w", err)), slices.Contains(p.states, state); got != want {
					t.Errorf("%s: %s of %s is %v", driver, name, state, got)
				}
			}
		}
	}
	if !pgdriver.IsUnanswered(errors.New("no answer")) {
		t.Error("an error without an answer is taken for one")
	}
}

// stateError is an error with an SQLSTATE.
type stateError string

func (s stateError) Error() string    { return "state " + string(s) }
func (s stateError) SQLState() string { return string(s) }

// FaultOf returns FaultRow only for errors that a row may have caused.
func TestFaultOf(t *testing.T) {
	for want, states := range map[pgdriver.Fault][]string{
		pgdriver.FaultServer: {"", "x", "08006", "08P01", "25006", "25P02", "25P03", "26000", "28P01", "3D000", "40001", "40P01", "42P05", "53100", "53200", "53300",
			"57P01", "57P03", "58030", "F0000"},
		pgdriver.FaultStatement: {"0A000", "2D000", "42501", "42703", "42883", "42P01", "55000", "55P03", "57014", "HV000", "XX000", "XX001"},
		pgdriver.FaultRow:       {"09000", "21000", "22P05", "23505", "23514", "38000", "44000", "54000", "54001", "P0001", "ZZ001", "I0000"},
	} {
		for _, state := range states {
			if got := pgdriver.FaultOf(fmt.Errorf("wrapped: %w", stateError(state))); got != want {
				t.Errorf("%q: %d, want %d", state, got, want)
			}
		}
	}
	for _, err := range []error{nil, context.DeadlineExceeded, io.EOF} {
		if got := pgdriver.FaultOf(err); got != pgdriver.FaultServer {
			t.Errorf("%v: %d", err, got)
		}
	}
}

// CutOff adds the cause to the error of a statement that the context ended, and of any later
// statement, with every driver.
func TestCutOff(t *testing.T) {
	d := pgtest.Empty(t)
	why := errors.New("it took too long")
	for driver, db := range map[string]*sql.DB{"pgx": d.DB, "lib/pq": d.OpenPQ(t)} {
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, fmt.Errorf("%w: %w", why, context.DeadlineExceeded))
		_, cut := conn.ExecContext(ctx, `SELECT pg_sleep(60)`)
		<-ctx.Done()
		_ = conn.Close()
		if conn, err = db.Conn(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, late := conn.ExecContext(ctx, `SELECT 1`)
		if cut == nil {
			t.Fatalf("%s: nothing was cut off", driver)
		}
		for _, err := range []error{cut, late} {
			if got := pgdriver.CutOff(ctx, err); err != nil && (!errors.Is(got, context.DeadlineExceeded) || !errors.Is(got, err)) {
				t.Errorf("%s: %v of %v", driver, got, err)
			}
			if got := pgdriver.CutOff(t.Context(), err); got != err {
				t.Errorf("%s: %v of %v, and nothing has ended", driver, got, err)
			}
		}
		cancel()
		_ = conn.Close()
	}
	if err := pgdriver.CutOff(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// IsRowSecurity distinguishes the error of a policy from the error of a missing privilege.
func TestRowSecurity(t *testing.T) {
	d := pgtest.Empty(t)
	d.Exec(t, `CREATE TABLE odd (n INT)`)
	d.Exec(t, `ALTER TABLE odd ENABLE ROW LEVEL SECURITY`)
	d.Exec(t, `CREATE POLICY none ON odd WITH CHECK (false)`)
	for driver, db := range map[string]*sql.DB{"pgx": d.DB, "lib/pq": d.OpenPQ(t)} {
		for grants, want := range map[string]bool{"GRANT INSERT ON odd TO pg_monitor": true, "REVOKE INSERT ON odd FROM pg_monitor": false} {
			d.Exec(t, grants)
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.ExecContext(t.Context(), `SET LOCAL ROLE pg_monitor`); err != nil {
				t.Fatal(err)
			}
			_, err = tx.ExecContext(t.Context(), `INSERT INTO odd VALUES (1)`)
			if got := pgdriver.IsRowSecurity(err); got != want || pgdriver.SQLState(err) != pgdriver.InsufficientPrivilege {
				t.Errorf("%s: after %s: %t, %v", driver, grants, got, err)
			}
			_ = tx.Rollback()
		}
	}
}

// Violation returns the constraint with either driver.
func TestViolation(t *testing.T) {
	d := pgtest.Empty(t)
	d.Exec(t, `CREATE TABLE ones (n INT CONSTRAINT the_one UNIQUE)`)
	d.Exec(t, `INSERT INTO ones VALUES (1)`)
	for driver, db := range map[string]*sql.DB{"pgx": d.DB, "lib/pq": d.OpenPQ(t)} {
		_, err := db.ExecContext(t.Context(), `INSERT INTO ones VALUES (1)`)
		constraint, detail := pgdriver.Violation(err)
		if constraint != "the_one" || detail == "" || pgdriver.SQLState(err) != pgdriver.UniqueViolation {
			t.Errorf("%s: %q, %q, %v", driver, constraint, detail, err)
		}
	}
	if constraint, detail := pgdriver.Violation(errors.New("another")); constraint != "" || detail != "" {
		t.Errorf("of another error: %q, %q", constraint, detail)
	}
}
