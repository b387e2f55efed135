package sim

import (
	"maps"
	"testing"
	"time"

	"github.com/pgfrontier/worker/sim/events"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/jobs"
	"github.com/pgfrontier/worker/sim/oracle"
)

func TestGivenFaultsLeaveTheRestOfTheSeed(t *testing.T) {
	t.Parallel()
	c := DefaultConfig()
	drawn := Draw(c)
	c.Faults = drawn.Faults
	if again := Draw(c); again.Knobs != drawn.Knobs || !maps.Equal(again.Faults, drawn.Faults) {
		t.Errorf("with -faults as drawn the scenario is another:\n%+v\n%+v", drawn, again)
	}
}

// TestEveryStateCanBeReached sees to it that what a state needs are faults that
// there are: else it would never be missed.
func TestEveryStateCanBeReached(t *testing.T) {
	t.Parallel()
	none := func(history.Fault) int64 { return 0 }
	for name, c := range map[string]struct {
		evidence *history.Evidence
		faults   []oracle.Injected
		rare     int // states that are never missed
	}{
		"events": {&history.Evidence{}, events.Faults.On(events.Faults.All(), none), 9},
		"jobs":   {&history.Evidence{Jobs: &history.Jobs{}}, jobs.Faults.On(jobs.Faults.All(), none), 0},
	} {
		c.evidence.History = history.New(time.Now())
		r := &oracle.Report{Seconds: 1000, Faults: c.faults}
		r.Judge(c.evidence)
		r.Outcome = oracle.Held // as if it had happened
		if total := oracle.Sum([]*oracle.Report{r}); len(total.Unreached) != len(r.Reached)-c.rare || len(total.Missing) != len(c.faults) {
			t.Errorf("%s: of %d states %d are missed: %q; of %d faults %d", name, len(r.Reached), len(total.Unreached), total.Unreached, len(c.faults), len(total.Missing))
		}
	}
}
