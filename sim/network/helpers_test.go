package network

import (
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// eventually waits for something that must come.
func eventually(t *testing.T, what string, come func() bool) {
	t.Helper()
	if !pgtest.Poll(come) {
		t.Fatalf("waited in vain for: %s", what)
	}
}
