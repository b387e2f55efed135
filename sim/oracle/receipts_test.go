package oracle

import (
	"testing"

	"github.com/pgfrontier/worker/sim/history"
)

func TestReceipts(t *testing.T) {
	t.Parallel()
	applied := []history.Entry{{Consumer: "c"}}
	for name, c := range map[string]struct {
		ledger []history.Entry
		proof  history.Proof
		holds  bool
	}{
		"proven":           {applied, history.Proof{Consumer: "c", Events: 1}, true},
		"nothing applied":  {nil, history.Proof{Consumer: "c"}, true},
		"nothing proven":   {applied, history.Proof{Consumer: "c"}, false},
		"an event missing": {applied, history.Proof{Consumer: "c", Events: 1, Unproven: []string{"position 2"}}, false},
	} {
		e := &history.Evidence{Ledger: c.ledger, Proofs: []history.Proof{c.proof}}
		if f := receipts(e); f.Holds() != c.holds || f.Checks == 0 {
			t.Errorf("%s: %+v", name, f)
		}
	}
}
