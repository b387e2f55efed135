package pgdriver_test

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Each predicate recognises the answers that it is about, from either driver,
// and no others.
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

// A violation is named with either driver.
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
