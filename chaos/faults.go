//go:build unix

package chaos

import (
	"context"
	"math/rand/v2"
	"slices"

	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

// faultRow is a fault: what it is, and how it is injected, into a worker process
// or into the server. A new one is a row in process_faults.go or
// server_faults.go.
type faultRow struct {
	fault.Row
	also []history.Fault // what else it is counted as

	process func(s *slot, ctx, intake context.Context) error
	server  func(f *serverFaults, ctx context.Context) error // returns when the server is well again
}

// faultRows are all faults. The order is that of -h, and of what a seed draws.
var faultRows = slices.Concat(processRows, serverRows)

// faultTable is what they are.
var faultTable = func() (t fault.Table) {
	for _, f := range faultRows {
		t = append(t, f.Row)
	}
	return t
}()

// failedStarts is counted beside faults.
const failedStarts history.Fault = "worker processes that could not start, replaced"

// counters are what a run counts, in the order of printing.
func counters() []history.Fault {
	all := []history.Fault{failedStarts}
	for _, f := range faultRows {
		all = append(all, slices.Concat(f.Counts, f.also)...)
	}
	return all
}

// Faults say which faults are on, by name, and how intense: 0 is none, 1 the
// usual, 2 twice as often in comparison.
type Faults map[string]float64

// AllFaults is every fault, as much of it as usual.
func AllFaults() Faults { return faultTable.All() }

// ParseFaults reads what String prints: "kill=1,promote=0.5", "all" or "none".
func ParseFaults(s string) (Faults, error) { return faultTable.Parse(s) }

// String is for -faults.
func (f Faults) String() string { return faultTable.Format(f) }

// FaultTable is the faults as a person reads them.
func FaultTable() []oracle.Line { return faultTable.Lines() }

// drawFaults has every fault: a run is long.
func drawFaults(r *rand.Rand) Faults {
	drawn := Faults{}
	for _, f := range faultRows {
		drawn[f.Name] = []float64{0.5, 1, 1, 2}[r.IntN(4)]
	}
	return drawn
}

// deck deals those of the faults that are on.
func (f Faults) deck(dice *rand.Rand, rows []faultRow) *fault.Deck[faultRow] {
	var cards []fault.Card[faultRow]
	for _, row := range rows {
		cards = append(cards, fault.Card[faultRow]{What: row, Times: 2 * f[row.Name]}) // 0.5 is a card
	}
	return fault.NewDeck(dice, cards)
}
