package main

import (
	"testing"

	"github.com/pgfrontier/worker/examples/internal/program"
)

func TestMain(m *testing.M) { program.Main(m, main) }

// The payment that commits late is handled, and in order.
func Example() {
	program.Run(run)
	// Output:
	// payment 1 of ann: {"cents" : 500}
	// payment 2 of bob is not committed yet
	// payment 3 of cid is committed
	// payment 2 of bob is committed
	// payment 2 of bob: {"cents" : 1200}
	// payment 3 of cid: {"cents" : 300}
}
