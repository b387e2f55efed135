package batch

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/partition"
)

// However many parts a consumer has, its parts without events make at most 40 deferred
// commits a second in total. With few parts, each part defers for 100 ms.
func TestDeferLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := partition.Cut(rapid.IntRange(1, partition.MaxCount).Draw(t, "parts"))
		commits := 0.0 // per second
		for _, slots := range parts {
			limit := DeferLimit(slots)
			if limit < 100*time.Millisecond || len(parts) <= 4 && limit > 103*time.Millisecond {
				t.Fatalf("one of %d parts defers its commit for %v", len(parts), limit)
			}
			commits += 1 / limit.Seconds()
		}
		if commits > 40.001 {
			t.Fatalf("%d parts commit %.1f times a second", len(parts), commits)
		}
	})
}
