package sim

import (
	"maps"
	"reflect"
	"testing"
	"time"

	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

// TestSwarmCoversEveryFault sees to it that seeds differ in what is on, and
// that each fault is on in many of them.
func TestSwarmCoversEveryFault(t *testing.T) {
	t.Parallel()
	const seeds = 400
	times, different := map[string]int{}, map[string]bool{}
	for seed := range uint64(seeds) {
		drawn := drawFaults(seed)
		different[drawn.String()] = true
		for name := range drawn {
			times[name]++
		}
	}
	for _, f := range faultRows {
		if n := times[f.Name]; n < seeds/4 || (n == seeds) != f.always {
			t.Errorf("%s is on in %d of %d seeds; always: %v", f.Name, n, seeds, f.always)
		}
	}
	if len(different) < seeds*3/4 {
		t.Errorf("%d seeds draw %d sets of faults", seeds, len(different))
	}
}

func TestGivenFaultsLeaveTheRestOfTheSeed(t *testing.T) {
	t.Parallel()
	c := DefaultConfig()
	drawn := Draw(c)
	c.Faults = drawn.Faults
	if again := Draw(c); again.Knobs != drawn.Knobs || !maps.Equal(again.Faults, drawn.Faults) {
		t.Errorf("with -faults as drawn the scenario is another:\n%+v\n%+v", drawn, again)
	}
}

// TestEveryFaultCanBeTurnedOff sees to it that a row is whole, and that all that
// a run does can be turned off.
func TestEveryFaultCanBeTurnedOff(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, f := range faultRows {
		ways := len(f.worker) + len(f.writer)
		if f.handler != nil || f.build != nil {
			ways++
		}
		if names[f.Name] || f.Name == "" || f.Does == "" || len(f.Counts) == 0 || (ways == 0) != f.async {
			t.Errorf("the row of a fault lacks something: %+v", f)
		}
		names[f.Name] = true
	}
	s := newSlot(1, Scenario{Faults: Intensities{}}, nil, nil, nil, nil)
	if i, ok := s.deck.Deal(); ok {
		t.Errorf("with no faults on, the slot is dealt an injection %v", i.at)
	}
	idle := newSimulation(Config{}, Scenario{Faults: Intensities{}}, nil, nil)
	if len(idle.ofHandlers) > 0 {
		t.Errorf("with no faults on, handlers have %+v", idle.ofHandlers)
	}
	for _, o := range operations(Intensities{}) {
		if o.counts != "" && o.counts != severalAggregates && o.weight > 0 {
			t.Errorf("with no faults on, there are %s", o.counts)
		}
	}
}

func TestDeckHoldsWhatIsOn(t *testing.T) {
	t.Parallel()
	cards := injections(Intensities{"crash": 2, "cut": 1})
	times := map[float64]int{}
	for _, c := range cards {
		times[c.Times]++
	}
	if times[2] != 4 || times[1] != 4 {
		t.Errorf("the cards: %+v", cards)
	}
}

func TestFaultsThatAreOnAreCounted(t *testing.T) {
	t.Parallel()
	happened := map[history.Fault]int64{history.Crashes: 2, history.IdleCrashes: 1, history.Stalls: 4}
	got := faultTable.On(Intensities{"cut": 0.5, "crash": 2, "stall": 0}, func(f history.Fault) int64 { return happened[f] })
	for i := range got {
		got[i].Reaches = nil
	}
	if want := []oracle.Injected{{Name: "crash", Intensity: 2, Count: 3}, {Name: "cut", Intensity: 0.5}}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
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
		"events": {&history.Evidence{}, faultTable.On(AllFaults(), none), 9},
		"jobs":   {&history.Evidence{Jobs: &history.Jobs{}}, jobFaultTable.On(AllJobFaults(), none), 0},
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
