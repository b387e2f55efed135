package consume

import (
	"testing"

	"github.com/pgfrontier/worker/internal/partition"
)

// After a batch a consumer waits only if more has come meanwhile: an event on a
// quiet log is handled at once.
func TestEventsGatherOnlyUnderLoad(t *testing.T) {
	d, h := newLedgerStepper(t)
	if pause := h.loop.gather(committed); pause != 0 {
		t.Errorf("it waits for %v before its first batch", pause)
	}
	for range 2 {
		appendOne(t, d.DB, "1")
		h.lookUpTo(t, h.frontier.Value().Safe+1)
		if r, fatal := h.loop.step(t.Context(), t.Context()); r.outcome != committed || fatal != nil {
			t.Fatalf("the batch: %+v, %v", r, fatal)
		}
		if pause := h.loop.gather(committed); pause != 0 {
			t.Errorf("on a quiet log it waits for %v", pause)
		}
	}
	appendOne(t, d.DB, "1")
	h.lookUpTo(t, h.frontier.Value().Safe+1)
	if pause := h.loop.gather(committed); pause != gathering {
		t.Errorf("with an event that came during the batch it waits for %v, want %v", pause, gathering)
	}
}

// What comes next to a part comes after events of others, so a part waits after each
// batch: else it has one for nearly each event. The more parts there are, the longer.
func TestAPartGathersAfterEachBatch(t *testing.T) {
	last := gathering
	for n := 2; n <= partition.MaxCount; n *= 2 {
		var d declared
		c := consumerLoop{unit: d.unit(partition.Cut(n)[0])}
		pause := c.gather(committed)
		if pause <= last && pause < 3*gathering || pause > 3*gathering {
			t.Errorf("one of %d parts waits for %v after a batch, one of half as many for %v", n, pause, last)
		}
		last = pause
	}
}
