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

var (
	eventFaults faultRows = slices.Concat(processRows, contractRows, operatorRows, serverRows, restoreRows)
	jobFaults   faultRows = slices.Concat(processRows, leaderRows, deployRows, serverRows, terminateRows)
)

// rows are the faults that a run may have.
func (c Config) rows() faultRows {
	if c.Jobs {
		return jobFaults
	}
	return eventFaults
}

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

// AllFaults is every fault of a run of events, as much of it as usual.
func AllFaults() Faults { return eventFaults.table().All() }

// ParseFaults reads "kill=1,promote=0.5", "all" or "none", for a run of events.
func ParseFaults(s string) (Faults, error) { return eventFaults.table().Parse(s) }

// ParseJobFaults does the same for a run of jobs.
func ParseJobFaults(s string) (Faults, error) { return jobFaults.table().Parse(s) }

// FaultTable is the faults of a run of events as a person reads them.
func FaultTable() []oracle.Line { return eventFaults.table().Lines() }

// JobFaultTable is those of a run of jobs.
func JobFaultTable() []oracle.Line { return jobFaults.table().Lines() }

// deck deals those of the faults that are on.
func (f Faults) deck(dice *rand.Rand, rows faultRows) *fault.Deck[faultRow] {
	var cards []fault.Card[faultRow]
	for _, row := range rows {
		cards = append(cards, fault.Card[faultRow]{What: row, Times: 2 * f[row.Name]}) // 0.5 is a card
	}
	return fault.NewDeck(dice, cards)
}
