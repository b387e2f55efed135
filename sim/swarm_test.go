package sim

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

// TestSwarmCoversEveryFault sees to it that seeds differ in what is on, and
// that each fault is on in many of them.
func TestSwarmCoversEveryFault(t *testing.T) {
	const seeds = 400
	times, different := map[string]int{}, map[string]bool{}
	for seed := range uint64(seeds) {
		drawn := drawFaults(seed)
		different[drawn.String()] = true
		for name := range drawn {
			times[name]++
		}
	}
	for _, k := range kinds {
		if n := times[k.name]; n < seeds/4 || (n == seeds) != k.always {
			t.Errorf("%s is on in %d of %d seeds; always: %v", k.name, n, seeds, k.always)
		}
	}
	if len(different) < seeds*3/4 {
		t.Errorf("%d seeds draw %d sets of faults", seeds, len(different))
	}
}

func TestGivenFaultsLeaveTheRestOfTheSeed(t *testing.T) {
	c := DefaultConfig()
	drawn := Draw(c)
	c.Faults = drawn.Faults
	if again := Draw(c); again.Knobs != drawn.Knobs || !maps.Equal(again.Faults, drawn.Faults) {
		t.Errorf("with -faults as drawn the scenario is another:\n%+v\n%+v", drawn, again)
	}
}

// TestEveryMishapIsAFault sees to it that all that a run does can be turned
// off.
func TestEveryMishapIsAFault(t *testing.T) {
	for _, m := range mishaps {
		if !slices.Contains(faultNames(), m.name) {
			t.Errorf("a mishap is of the unknown kind %q", m.name)
		}
	}
	s := newSlot(1, Scenario{Faults: Intensities{}}, nil, nil, nil, nil)
	if m, ok := s.deal(); ok {
		t.Errorf("with no faults on, the slot is dealt %q", m.name)
	}
	for _, p := range plays(Intensities{}) {
		if p.name != "" && p.weight > 0 {
			t.Errorf("with no faults on, writers play %q", p.name)
		}
	}
}

func TestDeckHoldsWhatIsOn(t *testing.T) {
	s := newSlot(1, Scenario{Faults: Intensities{"crash": 2, "cut": 1}}, nil, nil, nil, nil)
	s.deal()
	dealt := map[string]int{}
	for _, m := range append(s.deck, mishap{}) { // and the one dealt
		dealt[m.name]++
	}
	if len(s.deck)+1 != 2*4+4 || dealt["crash"] < 7 || dealt["cut"] < 2 {
		t.Errorf("the deck after a draw: %v", dealt)
	}
}

func TestFaultsThatAreOnAreCounted(t *testing.T) {
	happened := map[history.Fault]int64{history.Crashes: 2, history.IdleCrashes: 1, history.Stalls: 4}
	got := Intensities{"cut": 0.5, "crash": 2, "stall": 0}.struck(func(f history.Fault) int64 { return happened[f] })
	if want := []oracle.Struck{{Name: "crash", Intensity: 2, Count: 3}, {Name: "cut", Intensity: 0.5}}; !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestEveryStateCanBeReached sees to it that what a state needs are faults that
// there are: else it would never be missed.
func TestEveryStateCanBeReached(t *testing.T) {
	const rare = 4 // are never missed
	r := &oracle.Report{
		Seconds: 1000, Faults: AllFaults().struck(func(history.Fault) int64 { return 0 }),
		Reached: oracle.Reached(&history.Evidence{History: history.New(time.Now())}),
	}
	if total := oracle.Sum([]*oracle.Report{r}); len(total.Unreached) != len(r.Reached)-rare || len(total.Missing) != len(kinds) {
		t.Errorf("of %d states %d are missed: %q; of %d faults %d", len(r.Reached), len(total.Unreached), total.Unreached, len(kinds), len(total.Missing))
	}
}
