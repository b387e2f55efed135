package oracle

import (
	"testing"

	"github.com/pgfrontier/worker/sim/history"
)

// Under a strict order an event comes late only if an operator has let its
// consumer leave out one behind it.
func TestOnlyAnOperatorBreaksAStrictOrder(t *testing.T) {
	for name, test := range map[string]struct {
		skip  history.Operation
		holds bool
	}{
		"skipped over":            {history.Operation{Consumer: "all", Kind: history.OperationSkip, Epoch: 1, From: 4, To: 12}, true},
		"another consumer's":      {history.Operation{Consumer: "some", Kind: history.OperationSkip, Epoch: 1, From: 4, To: 12}, false},
		"in another epoch":        {history.Operation{Consumer: "all", Kind: history.OperationSkip, Epoch: 2, From: 4, To: 12}, false},
		"of an event before it":   {history.Operation{Consumer: "all", Kind: history.OperationSkip, Epoch: 1, From: 4, To: 8}, false},
		"after it":                {history.Operation{Consumer: "all", Kind: history.OperationSkip, Epoch: 1, From: 9, To: 12}, false},
		"set back, and not ahead": {history.Operation{Consumer: "all", Kind: history.OperationReset, Epoch: 1, From: 4, To: 12}, false},
	} {
		t.Run(name, func(t *testing.T) {
			late := history.Entry{Event: history.Event{Position: 9, Type: "order", ID: "1", Version: 1}, Consumer: "all", Epoch: 1, Late: true}
			e := &history.Evidence{Strict: true, Ledger: []history.Entry{late}, Operations: []history.Operation{test.skip}}
			if f := order(e); f.Holds() != test.holds {
				t.Errorf("%+v", f)
			}
		})
	}
}
