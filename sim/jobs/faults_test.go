package jobs

import (
	"slices"
	"testing"

	"github.com/pgfrontier/worker/sim/events"
)

// A name tells one fault of a run of jobs.
func TestJobFaultsHaveNames(t *testing.T) {
	t.Parallel()
	names := Faults.Names()
	slices.Sort(names)
	if n := len(names); len(slices.Compact(names)) != n {
		t.Errorf("two faults have the same name: %q", Faults.Names())
	}
	for name := range faultsOfEmitters(Faults.All()) {
		if !slices.Contains(events.Faults.Names(), name) {
			t.Errorf("there is no fault %q of consumers", name)
		}
	}
}
