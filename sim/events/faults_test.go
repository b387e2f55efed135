package events

import (
	"reflect"
	"testing"

	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
	"github.com/pgfrontier/worker/sim/server"
	"github.com/pgfrontier/worker/sim/stage"
)

// TestSwarmCoversEveryFault sees to it that seeds differ in what is on, and
// that each fault is on in many of them.
func TestSwarmCoversEveryFault(t *testing.T) {
	t.Parallel()
	const seeds = 400
	times, different := map[string]int{}, map[string]bool{}
	for seed := range uint64(seeds) {
		drawn := drawFaults(seed)
		different[Faults.Format(drawn)] = true
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
	none := NewDatabase(server.NewInstance(&server.Database{}, nil))
	s := NewSlot(1, Scenario{Faults: map[string]float64{}}, none, nil, nil, nil)
	if i, ok := s.deck.Deal(); ok {
		t.Errorf("with no faults on, the slot is dealt an injection %v", i.at)
	}
	idle := newSimulation(stage.Plan{}, Scenario{Faults: map[string]float64{}}, none, nil)
	if len(idle.handlers) > 0 {
		t.Errorf("with no faults on, handlers have %d", len(idle.handlers))
	}
	for _, o := range operations(map[string]float64{}) {
		if o.counts != "" && o.counts != severalAggregates && o.weight > 0 {
			t.Errorf("with no faults on, there are %s", o.counts)
		}
	}
}

func TestDeckHoldsWhatIsOn(t *testing.T) {
	t.Parallel()
	cards := injections(map[string]float64{"crash": 2, "cut": 1})
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
	got := Faults.On(map[string]float64{"cut": 0.5, "crash": 2, "stall": 0}, func(f history.Fault) int64 { return happened[f] })
	for i := range got {
		got[i].Reaches = nil
	}
	if want := []oracle.Injected{{Name: "crash", Intensity: 2, Count: 3}, {Name: "cut", Intensity: 0.5}}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
