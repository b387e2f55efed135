package events

import (
	"testing"
	"time"

	"github.com/pgfrontier/worker"
)

// TestKnobsAreValid sees to it that no seed draws what a worker refuses.
func TestKnobsAreValid(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2000) {
		config := worker.DefaultConfig()
		for _, option := range Draw(seed, 6, 22*time.Second, nil).Knobs.options("postgres://127.0.0.1/db") {
			option(&config)
		}
		if err := config.Validate(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}
