// Package fault has what the tables of faults of packages sim and chaos share. A row says what a
// fault is called, does, is counted as and leads to. There is also the flag that turns faults on,
// and the deck that deals them.
//
// The package knows neither workers nor servers. How a fault is injected is in the same row, in the
// package that injects it.
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
	Counts  []history.Fault    // its counters: if it is on, one of them should count
	Also    []history.Fault    // its further counters
	Reaches []oracle.Condition // conditions of states that it brings about
	Needs   []*Need            // of the server
}

// New returns a row with counters.
func New(name, does string, counts ...history.Fault) Row {
	return Row{Name: name, Does: does, Counts: counts}
}

// Reaching sets the conditions that the fault brings about.
func (r Row) Reaching(conditions ...oracle.Condition) Row {
	r.Reaches = conditions
	return r
}

// Needing sets what the fault needs of the server.
func (r Row) Needing(needs ...*Need) Row {
	r.Needs = needs
	return r
}

// AlsoCounting sets the further counters.
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

// Counters returns first, and then the counters of all faults, each once.
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
