// Package fault has what the tables of faults of packages sim and chaos share:
// the part of a row that says what a fault is called, does, is counted as and
// leads to, the flag that turns faults on, and the deck that deals them.
//
// It knows neither workers nor servers. How a fault is injected stands in the
// same row, in the package that does it.
package fault

import (
	"slices"

	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

// Row says what a fault is.
type Row struct {
	Name    string             // as -faults takes it
	Does    string             // for people
	Counts  []history.Fault    // what it is counted as: if it is on, one of them should happen
	Also    []history.Fault    // what else it is counted as
	Reaches []oracle.Condition // what it brings about that states of a run need
	Needs   []*Need            // of the server
}

// New returns the row of a fault that is counted as some.
func New(name, does string, counts ...history.Fault) Row {
	return Row{Name: name, Does: does, Counts: counts}
}

// Reaching adds what the fault brings about that states of a run need.
func (r Row) Reaching(conditions ...oracle.Condition) Row {
	r.Reaches = conditions
	return r
}

// Needing adds what the fault needs of the server.
func (r Row) Needing(needs ...*Need) Row {
	r.Needs = needs
	return r
}

// AlsoCounting adds what else the fault is counted as.
func (r Row) AlsoCounting(counts ...history.Fault) Row {
	r.Also = counts
	return r
}

// Table is all faults of a package, in the order in which they are printed.
type Table []Row

// Names returns the names for -faults.
func (t Table) Names() (names []string) {
	for _, r := range t {
		names = append(names, r.Name)
	}
	return names
}

// Lines returns the table for people.
func (t Table) Lines() (lines []oracle.Line) {
	for _, r := range t {
		lines = append(lines, oracle.Line{Name: r.Name, Value: r.Does})
	}
	return lines
}

// Counters returns some counters, and after them what all faults are counted as, each once.
func (t Table) Counters(first ...history.Fault) (all []history.Fault) {
	all = slices.Clone(first)
	for _, r := range t {
		for _, c := range slices.Concat(r.Counts, r.Also) {
			if !slices.Contains(all, c) {
				all = append(all, c)
			}
		}
	}
	return all
}

// On lists the faults that are on, and how often each happened.
func (t Table) On(chosen map[string]float64, happened func(history.Fault) int64) (on []oracle.Injected) {
	for _, r := range t {
		if chosen[r.Name] == 0 {
			continue
		}
		i := oracle.Injected{Name: r.Name, Intensity: chosen[r.Name], Reaches: r.Reaches}
		for _, f := range r.Counts {
			i.Count += happened(f)
		}
		on = append(on, i)
	}
	return on
}
