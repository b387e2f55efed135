package sim

import (
	"maps"
	"slices"

	"github.com/pgfrontier/worker/sim/events"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/jobs"
)

// Intensities say which faults a run does, by name, and how much of each: 0 is
// none, 1 the usual, 2 twice as much.
type Intensities map[string]float64

// Faults are the faults of runs of events, or of jobs.
func Faults(ofJobs bool) fault.Table {
	if ofJobs {
		return jobs.Faults
	}
	return events.Faults
}

// String is for -faults.
func (i Intensities) String() string {
	if maps.Equal(i, events.Faults.All()) || maps.Equal(i, jobs.Faults.All()) {
		return "all"
	}
	return bothTables.Format(i)
}

// bothTables has the faults of both kinds of runs. Some have the same name.
var bothTables = func() fault.Table {
	all := slices.Clone(events.Faults)
	for _, r := range jobs.Faults {
		if !slices.Contains(all.Names(), r.Name) {
			all = append(all, r)
		}
	}
	return all
}()
