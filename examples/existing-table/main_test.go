package main

import (
	"testing"

	"github.com/pgfrontier/worker/examples/internal/program"
)

func TestMain(m *testing.M) { program.Main(m, main) }

// Rows that were there and a new one run, the one that failed again, the broken one no more.
func Example() {
	program.Run(run)
	// Output:
	// cat.jpg, attempt 1
	// empty.jpg, attempt 1
	// dog.jpg, attempt 1
	// bird.jpg, attempt 1
	// dog.jpg, attempt 2
	// cat.jpg completed: small-cat.jpg
	// empty.jpg failed: the photo is empty
	// dog.jpg completed: small-dog.jpg
	// bird.jpg completed: small-bird.jpg
}
