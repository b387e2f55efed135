package main

import (
	"testing"

	"github.com/pgfrontier/worker/examples/internal/program"
)

func TestMain(m *testing.M) { program.Main(m, main) }

// The second worker handles what the first has not, and nothing again.
func Example() {
	program.Run(run)
	// Output:
	// A worker starts:
	//   handles the order of ann: 500 cents
	//   handles the order of bob: 1200 cents
	//   handles the order of ann: 300 cents
	// ann: 2 orders, 800 cents
	// bob: 1 orders, 1200 cents
	// The worker has stopped.
	// A worker starts:
	//   handles the order of bob: 700 cents
	//   handles the order of cid: 100 cents
	// ann: 2 orders, 800 cents
	// bob: 2 orders, 1900 cents
	// cid: 1 orders, 100 cents
	// The worker has stopped.
}
