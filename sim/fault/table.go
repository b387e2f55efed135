package fault

import (
	"hash/fnv"
	"math/rand/v2"

	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

// Row says what a fault is.
type Row struct {
	Name    string             // as -faults takes it
	Does    string             // for people
	Counts  []history.Fault    // what it is counted as: if it is on, one of them should happen
	Reaches []oracle.Condition // what it brings about that states of a run need
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

// Counters returns what all faults are counted as.
func (t Table) Counters() (all []history.Fault) {
	for _, r := range t {
		all = append(all, r.Counts...)
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

// Dice gives each actor randomness of its own, so that what one draws does not
// depend on when the others do.
func Dice(seed uint64, actor string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(actor)) // never fails
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}
