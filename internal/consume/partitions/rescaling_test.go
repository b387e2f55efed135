package partitions

import (
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/partition"
)

// A failed split is neither retried nor waited for when no partitions are wanted any more.
func TestFailuresEndWithoutDemand(t *testing.T) {
	now := time.Now()
	r := Rescaling{unit: Unit{Slots: partition.All}, wanted: 4, failures: 1, due: now.Add(-time.Second)}
	if s := r.Next(0, Arrival{}, now); s.Task != "" || s.Wait != nil || s.Bound || s.Reload {
		t.Errorf("the step is %+v", s)
	}
	if at := r.Due(); !at.IsZero() {
		t.Errorf("the next check is at %v", at)
	}
}

// A page that was polled within a bound does not cover the positions beyond it.
func TestNewBoundIsReported(t *testing.T) {
	r := Rescaling{}
	for i, step := range []struct {
		bounded bool
		upTo    int64
		changed bool
	}{{true, 5, true}, {true, 5, false}, {true, 7, true}, {false, 0, true}, {false, 0, false}} {
		if changed := r.setBound(step.bounded, step.upTo); changed != step.changed {
			t.Errorf("step %d changes the bound: %v, want %v", i, changed, step.changed)
		}
	}
}

// The pause after failures ends when another number of partitions is wanted.
func TestNewDemandEndsPause(t *testing.T) {
	due := time.Now().Add(time.Minute)
	r := Rescaling{wanted: 8, failures: 7, due: due}
	if r.setWanted(8); r.failures != 7 || r.due != due {
		t.Errorf("the same number: %+v", r)
	}
	if r.setWanted(4); r.failures != 0 || !r.due.IsZero() {
		t.Errorf("another number: %+v", r)
	}
}
