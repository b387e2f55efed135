package server

import (
	"testing"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/sim/harness"
)

// A lock that the library never lets go is not the harness's failure.
func TestAStatementThatWaitsForALockIsNotExplained(t *testing.T) {
	t.Parallel()
	on := newDatabase(t)
	on.Bounds = harness.Bounds{Slowness: 0.2} // some seconds for a statement
	db := stdlib.OpenDB(*on.Config("harness"))
	on.Bounds = harness.Bounds{}
	defer func() { _ = db.Close() }()
	tx, err := on.DB.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.Exec(`LOCK TABLE sim_life`); err != nil {
		t.Fatal(err)
	}
	for statement, want := range map[string]bool{`DELETE FROM sim_life`: false, `SELECT pg_sleep(60)`: true} {
		_, err := db.Exec(statement)
		if err = on.Mine(t.Context(), err); err == nil || (harness.Explain(err) != nil) != want {
			t.Errorf("%s: %v, explained is to be %v", statement, err, want)
		}
	}
}
