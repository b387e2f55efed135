package txcheck

import (
	"testing"

	"github.com/pgfrontier/worker/internal/progress"
)

func rowVersion(revision int64, row, author, written string) progress.Version {
	return progress.Version{Revision: revision, Row: row, Author: author, Written: written}
}

// The row after a batch shows what the batch's handler did.
func TestVerdictFromCheckpointRow(t *testing.T) {
	before, after, other := rowVersion(1, "(0,1)", "700", "7"), rowVersion(2, "(0,2)", "701", "8"), rowVersion(2, "(0,2)", "702", "9")
	again := rowVersion(2, "(0,2)", "701", "9")
	for _, c := range []struct {
		name        string
		end         Ending
		seen        bool
		now         progress.Version
		want, crash verdict // crash: the verdict in another incarnation
	}{
		{"failed", Abandoned, false, before, txIntact, txIntact},
		{"failed, and is committed", Abandoned, false, after, handlerCommitted, handlerCommitted},
		{"failed, and another worker's batch has the same transaction after a crash", Abandoned, false, again, txIntact, txIntact},
		{"failed, and another worker's batch has the same place and revision", Abandoned, false, other, txIntact, txIntact},
		{"committed", Done, false, after, txIntact, txIntact},
		{"committed, and nothing has happened", Done, false, before, handlerChained, txIntact},
		{"committed, and another worker went on", Done, false, other, txIntact, txIntact},
		{"commit of unknown outcome, that did not happen", Unsure, false, before, txIntact, txIntact},
		{"commit of unknown outcome, that happened", Unsure, false, after, txIntact, txIntact},
		{"seen to have ended, committed", Abandoned, true, after, handlerCommitted, handlerCommitted},
		{"seen to have ended, rolled back", Abandoned, true, before, handlerRolledBack, handlerRolledBack},
		{"seen to have ended, another worker went on", Abandoned, true, other, handlerUnknown, handlerUnknown},
	} {
		b := &Batch{Work: Work{Before: before, Token: "t"}, After: after, End: c.end, Seen: c.seen}
		for token, want := range map[string]verdict{"t": c.want, "u": c.crash} {
			if got := b.judge(&progress.State{Version: c.now, Token: token}); got != want {
				t.Errorf("%s, in incarnation %s: verdict %d, want %d", c.name, token, got, want)
			}
		}
	}
	if v := (*Batch)(nil).judge(&progress.State{}); v != txIntact {
		t.Errorf("without a batch: verdict %d", v)
	}
}

// A row of another server, or of the same server after a crash, is no verdict. The next
// valid row may still show what the handler did.
func TestRowOfAnotherIncarnationIsNoVerdict(t *testing.T) {
	before, after := rowVersion(1, "(0,1)", "700", "7"), rowVersion(2, "(0,2)", "701", "8")
	b := &Batch{Work: Work{Before: before, Token: "t"}, After: after}
	if b.Compare(&progress.State{Version: before, Token: "u"}) || !b.IsOpen() {
		t.Errorf("after a read of another incarnation: %+v", b)
	}
	if !b.Compare(&progress.State{Version: after, Token: "t"}) || b.IsOpen() {
		t.Errorf("after a read of the handler's commit: %+v", b)
	}
}
