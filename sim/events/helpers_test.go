package events

import (
	"database/sql"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/sim/harness"
	"github.com/pgfrontier/worker/sim/server"
)

// eventually waits for something that must come.
func eventually(t *testing.T, what string, come func() bool) {
	t.Helper()
	if !pgtest.Poll(come) {
		t.Fatalf("waited in vain for: %s", what)
	}
}

// newDatabase creates a database of the simulation, which the test drops.
func newDatabase(t *testing.T) *Database {
	t.Helper()
	url, err := server.ParseURL(pgtest.Server(t).URL(""))
	if err != nil {
		t.Fatal(err)
	}
	d, err := server.Create(t.Context(), url, harness.Bounds{}, Tables...)
	if err != nil {
		t.Fatal(err)
	}
	on := NewDatabase(server.NewInstance(d, nil))
	t.Cleanup(func() {
		if err := on.Drop(); err != nil {
			t.Error(err)
		}
	})
	return on
}

func exec(t *testing.T, db interface {
	Exec(string, ...any) (sql.Result, error)
}, query string, args ...any) {
	t.Helper()
	if _, err := db.Exec(query, args...); err != nil {
		t.Fatalf("%v in %s", err, query)
	}
}
