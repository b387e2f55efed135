package sim

import "testing"

// historyHolds checks the history of a run that came to rest against its
// report.
func historyHolds(t *testing.T, r *Report) {
	t.Helper()
	kinds := map[Kind]int{}
	open := map[string]int{} // who has which transaction under way
	var committed, last int64
	at := 0.0
	for i, x := range r.Evidence.History.Records() {
		if x.N != i+1 || x.At < at {
			t.Fatalf("record %d after one of %.6fs: %+v", i+1, at, x)
		}
		at = x.At
		kinds[x.Kind]++
		switch about := x.About.(type) {
		case Transaction:
			if x.Kind == Begin {
				if open[x.Who] != 0 {
					t.Errorf("%s began transaction %d before the end of %d", x.Who, about.Tx, open[x.Who])
				}
				open[x.Who] = about.Tx
				continue
			}
			if about.Tx == open[x.Who] { // others had been prepared
				open[x.Who] = 0
			}
			if x.Kind == Committed {
				for _, s := range about.Positions {
					committed += s.Last - s.First + 1
				}
			}
		case Sample:
			last = about.Head
		}
	}
	if committed != r.Events {
		t.Errorf("the history has commits of %d events, the report %d", committed, r.Events)
	}
	for _, kind := range []Kind{RunBegan, Begin, Committed, RolledBack, PreparedToEnd, WorkerBegan, WorkerEnded, Leads, Owns, OwnsNoMore, BatchEnded, GapSkipped, FaultInjected, FaultsOver, Sampled} {
		if kinds[kind] == 0 {
			t.Errorf("the history has no record of the kind %q", kind)
		}
	}
	if last == 0 {
		t.Error("the samples have no head")
	}
}
