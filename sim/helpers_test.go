package sim

import (
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/sim/events"
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

func databaseOn(t *testing.T, url string) *server.Database {
	t.Helper()
	address, err := server.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	on, err := server.Create(t.Context(), address, harness.Bounds{}, events.Tables...)
	if err != nil {
		t.Fatal(err)
	}
	return on
}
