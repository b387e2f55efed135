package main

import (
	"testing"

	"github.com/pgfrontier/worker/examples/internal/program"
)

func TestMain(m *testing.M) { program.Main(m, main) }

// The consumer gets the newest version of each event.
func Example() {
	program.Run(run)
	// Output:
	// handles version 3: {"price":{"cents":500,"currency":"EUR"}}
	// handles version 3: {"price":{"cents":1200,"currency":"USD"}}
	// handles version 3: {"price": {"cents": 300, "currency": "EUR"}}
	// revenue in euros: 800 cents
}
