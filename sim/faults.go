package sim

import (
	"context"
	"database/sql"
	"slices"

	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
	"github.com/pgfrontier/worker/store"
)

// faultRow is a fault: what it is, when it is on, and how it is injected. A new
// one is a row in a fault_*.go file.
type faultRow struct {
	fault.Row
	also []history.Fault // what else it is counted as

	always  bool           // every seed draws it: the oracle needs it
	listens bool           // runs with it have the notify dispatcher
	outage  bool           // the server goes away, and comes back
	async   bool           // somebody does not wait for commits to be safe
	needs   []*requirement // of the server

	// How it is injected: into a worker as it starts or at a moment of a batch, into a
	// handler at each event, or by a writer in place of a plain append. A row without any
	// is a setting, which is read by name.
	build   build
	worker  []injection
	handler func(s *simulation, ctx context.Context, b *bookkeeper, d delivered, intensity float64) (done bool, err error)
	writer  []operation
}

// injection is a way in which a fault is injected into a worker, and when.
type injection struct {
	at     point
	inject func(s *slot, ctx, intake context.Context, at point) error
}

// at is the same injection at several points. A point that is named twice is
// drawn twice as often.
func at(inject func(s *slot, ctx, intake context.Context, at point) error, points ...point) (all []injection) {
	for _, p := range points {
		all = append(all, injection{p, inject})
	}
	return all
}

// delivered is an event in the hands of a handler.
type delivered struct {
	store.PersistedEvent
	tx    *sql.Tx
	first bool // of its batch
}

// faultRows are all faults. The order is that of -h, and of what a seed draws.
var faultRows = slices.Concat(workerFaults, backendFaults, notificationFaults, assignmentFaults, handlerFaults, contractFaults,
	operatorFaults, crashFaults, restoreFaults, standbyFaults, asyncFaults, writerFaults, buildFaults, mannerFaults)

// faultTable is what they are.
var faultTable = func() (t fault.Table) {
	for _, f := range faultRows {
		t = append(t, f.Row)
	}
	return t
}()

// requirement is what some faults need of the server.
type requirement struct {
	met  func(*database) bool
	says oracle.Line // in the report where it is not met; empty: nothing
}

var (
	preparing = &requirement{func(d *database) bool { return d.canPrepare },
		oracle.Line{Name: "not prepared", Value: "no transaction: the server's max_prepared_transactions is 0"}}
	noticing = &requirement{func(d *database) bool { return d.notices },
		oracle.Line{Name: "not half open", Value: "no connection: PostgreSQL 13 would not notice while the run lasts"}}
	readable = &requirement{func(d *database) bool { return !d.encrypted() },
		oracle.Line{Name: "not lost", Value: "or delayed, any notification: the connections are encrypted"}}
	ownServer = &requirement{func(d *database) bool { return d.own != nil },
		oracle.Line{Name: "not crashed", Value: "the server: it is not the run's own"}}
	replicating = &requirement{met: func(d *database) bool { return d.canFollow }}
)

// unmet are what the server lacks, each once.
func (d *database) unmet() (all []*requirement) {
	for _, f := range faultRows {
		for _, r := range f.needs {
			if !r.met(d) && !slices.Contains(all, r) {
				all = append(all, r)
			}
		}
	}
	return all
}

// Intensities say which faults a run does, by name, and how much of each: 0 is
// none, 1 the usual, 2 twice as much.
type Intensities map[string]float64

// AllFaults is every fault, as much of it as usual.
func AllFaults() Intensities { return faultTable.All() }

// ParseFaults reads what String prints: "crash=1,cut=0.5", "all", or "none".
func ParseFaults(s string) (Intensities, error) { return faultTable.Parse(s) }

// FaultTable is the faults as a person reads them.
func FaultTable() []oracle.Line { return faultTable.Lines() }

// any reports whether a fault is on that is of a kind.
func (i Intensities) any(is func(faultRow) bool) bool {
	return slices.ContainsFunc(faultRows, func(f faultRow) bool { return i[f.Name] > 0 && is(f) })
}

// able leaves out the faults that this server cannot do.
func (d *database) able(faults Intensities) Intensities {
	left := Intensities{}
	for _, f := range faultRows {
		if x, on := faults[f.Name]; on && !slices.ContainsFunc(f.needs, func(r *requirement) bool { return !r.met(d) }) {
			left[f.Name] = x
		}
	}
	return left
}

// drawFaults draws about half of the faults, and how intense each is. Those
// of listeners are left out often enough for other dispatchers.
func drawFaults(seed uint64) Intensities {
	r, drawn := fault.Dice(seed, "faults"), Intensities{}
	for _, f := range faultRows {
		on, factor := chance(r, 0.55), oneOf(r, 0.5, 1, 1, 2)
		if on || f.always {
			drawn[f.Name] = factor
		}
	}
	if chance(fault.Dice(seed, "listeners"), 0.4) {
		for _, f := range faultRows {
			if f.listens {
				delete(drawn, f.Name)
			}
		}
	}
	return drawn
}

// counters are what a run counts, in the order of printing.
func counters() []history.Fault {
	all := slices.Clone(plainCounters)
	for _, f := range faultRows {
		for _, c := range slices.Concat(f.Counts, f.also) {
			if !slices.Contains(all, c) {
				all = append(all, c)
			}
		}
	}
	return all
}
