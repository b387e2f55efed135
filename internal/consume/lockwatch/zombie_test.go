package lockwatch

import (
	"slices"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/progress"
)

// A batch is ended only if two polls find the same dead worker.
func TestZombieNeedsTwoSightings(t *testing.T) {
	nobody, one, other := progress.OpenBatch{}, progress.OpenBatch{Session: 1, Signature: 7}, progress.OpenBatch{Session: 1, Signature: 8}
	for apart, want := range map[time.Duration][]int{PollEvery: {9, 10}, PollEvery / 2: {10}} {
		var s suspicion
		var confirmed []int
		for i, z := range []progress.OpenBatch{nobody, nobody, one, nobody, one, other, one, nobody, other, other, other, nobody} {
			if s.confirms(z, time.Unix(0, 0).Add(time.Duration(i)*apart)) {
				confirmed = append(confirmed, i)
			}
		}
		if !slices.Equal(confirmed, want) {
			t.Errorf("polls %v apart confirmed %v, want only %v: found by polls in a row for %v", apart, confirmed, want, PollEvery)
		}
	}
}
