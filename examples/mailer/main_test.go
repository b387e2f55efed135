package main

import (
	"testing"

	"github.com/pgfrontier/worker/examples/internal/program"
)

func TestMain(m *testing.M) { program.Main(m, main) }

// One mail is sent for each order: when an answer is lost, when the provider has no time, and
// when the consumer handles the event again.
func Example() {
	program.Run(run)
	// Unordered output:
	// provider: sends a mail to ann
	// provider: its answer is lost
	// provider: has no time for bob
	// provider: sends a mail to cid
	// provider: the mail to ann is sent already
	// provider: sends a mail to bob
	// the consumer begins again, and dan orders
	// provider: sends a mail to dan
}
