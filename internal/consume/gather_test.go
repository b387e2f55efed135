package consume

import (
	"testing"

	"github.com/pgfrontier/worker/internal/consume/batch"
	"github.com/pgfrontier/worker/internal/partition"
)

// After a batch a consumer pauses only if more events arrived during the batch. An event on
// a quiet log is handled at once.
func TestEventsGatherOnlyUnderLoad(t *testing.T) {
	d, h := newLedgerStepper(t)
	if pause := h.loop.gather(committed, h.frontier.Value()); pause != 0 {
		t.Errorf("it waits for %v before its first batch", pause)
	}
	for range 2 {
		appendOne(t, d.DB, "1")
		h.stepFrontierTo(t, h.frontier.Value().Safe+1)
		if r, fatal := h.loop.step(t.Context(), t.Context()); r.outcome != committed || fatal != nil {
			t.Fatalf("the batch: %+v, %v", r, fatal)
		}
		if pause := h.loop.gather(committed, h.frontier.Value()); pause != 0 {
			t.Errorf("on a quiet log it waits for %v", pause)
		}
	}
	appendOne(t, d.DB, "1")
	h.stepFrontierTo(t, h.frontier.Value().Safe+1)
	if pause := h.loop.gather(committed, h.frontier.Value()); pause != batch.Gathering {
		t.Errorf("with an event that came during the batch it waits for %v, want %v", pause, batch.Gathering)
	}
}

// A part pauses after each batch, because most new events belong to other parts. Otherwise
// it would commit a batch for nearly each event. With more parts the pause is longer.
func TestPartGathersAfterEachBatch(t *testing.T) {
	last := batch.Gathering
	for n := 2; n <= partition.MaxCount; n *= 2 {
		var d spec
		c := agenda{unit: d.unit(partition.Cut(n)[0])}
		pause := c.gather(committed, nil)
		if pause <= last && pause < 3*batch.Gathering || pause > 3*batch.Gathering {
			t.Errorf("one of %d parts waits for %v after a batch, one of half as many for %v", n, pause, last)
		}
		last = pause
	}
}
