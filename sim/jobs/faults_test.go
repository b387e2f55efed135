package jobs

import (
	"slices"
	"testing"

	"github.com/pgfrontier/worker/sim/events"
	"github.com/pgfrontier/worker/sim/history"
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

// A job that ran and is gone with a crash was not rolled back.
func TestLearned(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		there, mayBeTakenBack bool
		want                  string
	}{
		{true, false, history.EnqueueCommitted},
		{true, true, history.EnqueueCommitted},
		{false, false, history.EnqueueRolledBack},
		{false, true, history.EnqueueUnsure},
	} {
		if got := learned(c.there, c.mayBeTakenBack); got != c.want {
			t.Errorf("there %t, may be taken back %t: %q, want %q", c.there, c.mayBeTakenBack, got, c.want)
		}
	}
}
