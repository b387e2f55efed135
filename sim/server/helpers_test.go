package server

import (
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/sim/harness"
)

func newDatabase(t *testing.T) *Database {
	t.Helper()
	server, err := ParseURL(pgtest.Server(t).URL(""))
	if err != nil {
		t.Fatal(err)
	}
	on, err := Create(t.Context(), server, harness.Bounds{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := on.Drop(); err != nil {
			t.Error(err)
		}
	})
	return on
}
