package sim

import "testing"

func TestStatesAreReached(t *testing.T) {
	h := recorded()
	h.Add("writer 1", "", Committed, Transaction{Unanswered: true})
	h.Add("writer 1", "", RolledBack, Transaction{Unanswered: true})
	h.Add("writer 1", "", RolledBack, Transaction{Error: "refused"})
	h.Add("worker 1.1", "all-1", BatchEnded, Batch{Outcome: BatchOvertaken})
	h.Add("worker 2.1", "all-1", BatchEnded, Batch{Outcome: BatchOvertaken})
	h.Add("worker 1.1", "all-1", Owns, nil)
	h.Add("worker 2.1", "all-1", Owns, nil)
	h.Add("worker 2.1", "all-1", OwnsNoMore, nil)
	h.Add("worker 1.1", "all-1", Owns, nil)
	h.Add("worker 2.1", "", FaultInjected, Injection{Cuts, BeforeCommit})
	h.Add("worker 2.1", "", FaultInjected, Injection{Cuts, AfterCommit})
	h.Add("worker 2.1", "", FrontierBlocked, Blocker{Prepared: true})
	h.Add("worker 2.1", "all-1", RetryAnnounced, Retry{ByHandler: true})
	h.Add("worker 2.1", "all-1", RetryAnnounced, Retry{})
	want := map[string]int64{guardBlocks: 2, doubtIsVoid: 2}
	for _, s := range Reached(h.Records()) {
		if n := max(1, want[s.Name]); s.Count != n {
			t.Errorf("%s: reached %d times, want %d", s.Name, s.Count, n)
		}
	}
}
