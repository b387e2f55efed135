package main

import (
	"testing"

	"github.com/pgfrontier/worker/examples/internal/program"
)

func TestMain(m *testing.M) { program.Main(m, main) }

// Each message is stored once and in order, whatever is sent again.
func Example() {
	program.Run(run)
	// Output:
	// a booking of -9900 cents is rolled back
	// accounts.Booked ann {"cents": 1000}
	// accounts.Booked ann {"cents": -300}
	// accounts.Booked ann {"cents": 1000} comes again and is dropped
	// accounts.Booked ann {"cents": -300} comes again and is dropped
	// accounts.Booked ann {"cents": 50}
}
