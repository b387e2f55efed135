package sim

import (
	"fmt"
	"testing"

	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

// historyHolds checks the history of a run that came to rest against its
// report, and adds to seen which of the kinds of records it has that are rare.
func historyHolds(t *testing.T, r *oracle.Report, seen map[string]bool) {
	t.Helper()
	kinds := map[history.Kind]int{}
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
		case history.Transaction:
			if x.Kind == history.Begin {
				if open[x.Who] != 0 {
					t.Errorf("%s began transaction %d before the end of %d", x.Who, about.Tx, open[x.Who])
				}
				open[x.Who] = about.Tx
				continue
			}
			if about.Tx == open[x.Who] { // others had been prepared
				open[x.Who] = 0
			}
			if x.Kind == history.Committed {
				for _, s := range about.Positions {
					committed += s.Last - s.First + 1
				}
			}
		case history.Sample:
			last = about.Head
		}
	}
	if committed != r.Events {
		t.Errorf("the history has commits of %d events, the report %d", committed, r.Events)
	}
	for _, kind := range []history.Kind{history.RunBegan, history.Begin, history.Committed, history.WorkerBegan, history.WorkerEnded, history.Leads, history.Owns, history.BatchEnded, history.FaultsOver, history.Sampled} {
		if kinds[kind] == 0 {
			t.Errorf("the history has no record of the kind %q", kind)
		}
	}
	for _, kind := range []history.Kind{history.RolledBack, history.PreparedToEnd, history.OwnsNoMore, history.GapSkipped, history.FaultInjected} {
		what := fmt.Sprintf("a record of the kind %q", kind)
		seen[what] = seen[what] || kinds[kind] > 0
	}
	if last == 0 {
		t.Error("the samples have no head")
	}
}
