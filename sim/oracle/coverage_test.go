package oracle

import (
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/sim/history"
)

func TestStatesAreReached(t *testing.T) {
	h := recorded()
	h.Add("writer 1", "", history.Committed, history.Transaction{Native: true, Unanswered: true})
	h.Add("writer 1", "", history.RolledBack, history.Transaction{Native: true, Unanswered: true})
	h.Add("writer 1", "", history.RolledBack, history.Transaction{Error: "refused"})
	h.Add("worker 1.1", "all-1", history.BatchEnded, history.Batch{Outcome: history.BatchOvertaken})
	h.Add("worker 2.1", "all-1", history.BatchEnded, history.Batch{Outcome: history.BatchOvertaken})
	h.Add("worker 1.1", "all-1", history.Owns, nil)
	h.Add("worker 2.1", "all-1", history.Owns, nil)
	h.Add("worker 2.1", "all-1", history.OwnsNoMore, nil)
	h.Add("worker 1.1", "all-1", history.Owns, nil)
	for _, where := range []string{history.BeforeStatement, history.AfterStatement, history.BeforeCommit, history.AfterCommit} {
		h.Add("worker 2.1", "", history.FaultInjected, history.Injection{Fault: history.Cuts, Where: where})
	}
	h.Add("worker 2.1", "", history.FrontierBlocked, history.Blocker{Prepared: true})
	h.Add("worker 2.1", "all-1", history.RetryAnnounced, history.Retry{ByHandler: true})
	h.Add("worker 2.1", "all-1", history.RetryAnnounced, history.Retry{})
	h.Add("worker 2.1", "parts-1", history.UnitsReplaced, history.Rescaled{From: []string{"b", "c"}, To: []string{"a"}})
	for _, why := range []string{history.RefusedParts, history.RefusedEvent} {
		h.Add("worker 2.1", "parts-1", history.MergeRefused, history.Refusal{Why: why})
	}
	stopped := func(unit string) {
		h.Add("worker 1.1", unit, history.BatchEnded, history.Batch{Outcome: history.BatchOvertaken})
	}
	sampled := func(units ...string) {
		standings := map[string]int64{}
		for _, u := range units {
			standings[u] = 1
		}
		h.Add("", "", history.Sampled, history.Sample{Checkpoints: standings})
	}
	sampled("all-1", "parts-1#000-7ff", "parts-1#800-fff")
	stopped("parts-1#000-7ff") // it is still there
	stopped("parts-1")         // it is gone, and comes back before the next sample
	stopped("parts-1#000-3ff") // it is gone
	sampled("all-1", "parts-1")
	h.Add("worker 1.1", "parts-1#000-3ff", history.BatchEnded, history.Batch{Outcome: history.BatchCommitted})
	sampled("all-1", "parts-1")
	want := map[string]int64{guardBlocks: 5, zombieBlocked: 4, doubtIsVoid: 2}
	e := &history.Evidence{
		History:     h,
		Log:         []history.Event{{Position: 1, EventID: uuid.New()}},
		Abandoned:   []history.Event{{Position: 1, EventID: uuid.New()}},
		Placements:  []history.Placement{{Consumer: "head-1", Position: 1, Visible: 1}},
		Kept:        1,
		PausedParts: 1,
		Breaches:    []history.Breach{{Unknown: &history.Span{First: 1, Last: 1}}},
		Repairs:     []history.Repair{{Consumer: "all-1"}},
		Restores:    []history.Restore{{Copied: 1, Restored: 3}},
		Forgotten:   []history.Skip{{Consumer: "all-1"}},
		Ledger:      []history.Entry{{Consumer: "all-1", Replay: true}},
		Operations:  []history.Operation{{Consumer: "parts-1#000-7ff", Kind: history.OperationReset}, {Consumer: "parts-1", Kind: history.OperationReset}, {Consumer: "parts-1#000-7ff", Kind: history.OperationSkip}},
		Unsure:      [][]history.Event{{{Position: 2, EventID: uuid.New()}}},
	}
	for _, s := range Reached(e) {
		if n := max(1, want[s.Name]); s.Count != n {
			t.Errorf("%s: reached %d times, want %d", s.Name, s.Count, n)
		}
	}
}
