//go:build unix

package chaos

import (
	"context"
	"math/rand/v2"
	"slices"

	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
)

// faultRow is a fault: what it is, and how it is injected, into a worker process
// or into the server. A new one is a row in process_faults.go, operator_faults.go or
// server_faults.go. A row without either is injected by an actor of its own.
type faultRow struct {
	fault.Row
	also []history.Fault // what else it is counted as

	process func(s *slot, ctx, intake context.Context) error
	server  func(f *serverFaults, ctx context.Context) error // returns when the server is well again
}

// faultRows are the faults of a run of one kind. The order is that of -h, and of what
// a seed draws.
type faultRows []faultRow

// table is what the faults are.
func (rows faultRows) table() (t fault.Table) {
	for _, f := range rows {
		t = append(t, f.Row)
	}
	return t
}

// failedStarts is counted beside faults.
const failedStarts history.Fault = "worker processes that could not start, replaced"

// counters are what a run counts, in the order of printing.
func (rows faultRows) counters() []history.Fault {
	all := []history.Fault{failedStarts}
	for _, f := range rows {
		all = append(all, slices.Concat(f.Counts, f.also)...)
	}
	return all
}

// draw has every fault: a run is long.
func (rows faultRows) draw(r *rand.Rand) Faults {
	drawn := Faults{}
	for _, f := range rows {
		drawn[f.Name] = []float64{0.5, 1, 1, 2}[r.IntN(4)]
	}
	return drawn
}

// ofProcesses are those that are injected into a worker process.
func (rows faultRows) ofProcesses() (some faultRows) {
	for _, f := range rows {
		if f.process != nil {
			some = append(some, f)
		}
	}
	return some
}

// ofServer are those that are injected into the server.
func (rows faultRows) ofServer() (some faultRows) {
	for _, f := range rows {
		if f.server != nil {
			some = append(some, f)
		}
	}
	return some
}

// Faults say which faults are on, by name, and how intense: 0 is none, 1 the
// usual, 2 twice as often in comparison.
type Faults map[string]float64

// deck deals those of the faults that are on.
func (f Faults) deck(dice *rand.Rand, rows faultRows) *fault.Deck[faultRow] {
	var cards []fault.Card[faultRow]
	for _, row := range rows {
		cards = append(cards, fault.Card[faultRow]{What: row, Times: 2 * f[row.Name]}) // 0.5 is a card
	}
	return fault.NewDeck(dice, cards)
}
