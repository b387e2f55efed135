package worker

import (
	"testing"
)

// After a batch a consumer waits only if more has come meanwhile: an event on a
// quiet log is handled at once.
func TestEventsGatherOnlyUnderLoad(t *testing.T) {
	d, h := newLedgerStepper(t)
	if pause := h.loop.gather(); pause != 0 {
		t.Errorf("it waits for %v before its first batch", pause)
	}
	for range 2 {
		appendOne(t, d.DB, "1")
		h.lookUpTo(t, h.frontier.Value().Safe+1)
		if r, fatal := h.loop.step(t.Context(), t.Context()); r.outcome != committed || fatal != nil {
			t.Fatalf("the batch: %+v, %v", r, fatal)
		}
		if pause := h.loop.gather(); pause != 0 {
			t.Errorf("on a quiet log it waits for %v", pause)
		}
	}
	appendOne(t, d.DB, "1")
	h.lookUpTo(t, h.frontier.Value().Safe+1)
	if pause := h.loop.gather(); pause != gathering {
		t.Errorf("with an event that came during the batch it waits for %v, want %v", pause, gathering)
	}
}
