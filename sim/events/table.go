package events

import (
	"fmt"
	"slices"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/stage"
)

// faultRows are all faults. The order is that of -h, and of what a seed draws.
var faultRows = slices.Concat(workerFaults, backendFaults, notificationFaults, assignmentFaults, handlerFaults, contractFaults,
	operatorFaults, crashFaults, restoreFaults, standbyFaults, asyncFaults, writerFaults, buildFaults, mannerFaults, versionFaults)

// Faults has the fault.Row of each of faultRows.
var Faults = func() (t fault.Table) {
	for _, f := range faultRows {
		t = append(t, f.Row)
	}
	return t
}()

// anyOn reports whether a fault of a kind is on.
func anyOn(on map[string]float64, is func(faultRow) bool) bool {
	return slices.ContainsFunc(faultRows, func(f faultRow) bool { return on[f.Name] > 0 && is(f) })
}

// drawFaults draws about half of the faults, and their intensities. It often leaves out the faults
// of listeners, so that other dispatchers are drawn.
func drawFaults(seed uint64) map[string]float64 {
	r, drawn := fault.Dice(seed, "faults"), map[string]float64{}
	for _, f := range faultRows {
		on, factor := fault.Chance(r, 0.55), fault.OneOf(r, 0.5, 1, 1, 2)
		if on || f.always {
			drawn[f.Name] = factor
		}
	}
	if fault.Chance(fault.Dice(seed, "listeners"), 0.4) {
		for _, f := range faultRows {
			if f.listens {
				delete(drawn, f.Name)
			}
		}
	}
	return drawn
}

// counters are what a run counts before its faults, in the order of printing.
var counters = []history.Fault{transactionsCommitted, severalAggregates, stage.Conflicts, stage.TransactionsBrokenOff, stage.SlowStarts}

// Draw makes the scenario of a seed, for a number of consumers and a duration. If faults is nil,
// the seed draws them.
func Draw(seed uint64, consumers int, duration time.Duration, faults map[string]float64) Scenario {
	r := fault.Dice(seed, "scenario")
	s := Scenario{Seed: seed, Knobs: DrawKnobs(r), Faults: faults}
	s.Knobs.Calm = min(max(duration/8, 300*time.Millisecond), 2250*time.Millisecond)
	if s.Faults == nil {
		s.Faults = drawFaults(seed)
	}
	if anyOn(s.Faults, func(f faultRow) bool { return f.listens }) {
		s.Knobs.Dispatcher = worker.DispatcherStrategyNotify
	}
	scoped := consumers / 3
	for i := range consumers {
		scope := history.Scope{Name: fmt.Sprintf("all-%d", i+1)}
		if k := i - (consumers - scoped); k >= 0 {
			scope.Types = scopes[r.IntN(len(scopes))]
			scope.Name = fmt.Sprintf("some-%d", k+1)
		} else if i == 1 {
			scope = history.Scope{Name: "head-1", AtHead: true}
		}
		s.Scope = append(s.Scope, scope)
	}
	if s.Faults[narrowBuildsOn] > 0 {
		s.Scope = append(s.Scope, grown)
	}
	if s.Faults[switchOn] > 0 {
		s.Scope = append(s.Scope, fault.OneOf(fault.Dice(seed, "next version"), history.Scope{Name: "next-1", NextOf: "all-1"}, history.Scope{Name: "next-1", NextOf: "parts-1", Partitioned: true}))
	}
	s.Scope = append(s.Scope, history.Scope{Name: "parts-1", Partitioned: true})
	return s
}

// injections are the injections of all faults, each as often as its fault is intense.
func injections(on map[string]float64) (all []fault.Card[injection]) {
	for _, f := range faultRows {
		for _, i := range f.worker {
			all = append(all, fault.Card[injection]{What: i, Times: on[f.Name]})
		}
	}
	return all
}

// buildsOf returns the builds of all faults.
func buildsOf(on map[string]float64) (all stage.Builds[Scenario]) {
	for _, f := range faultRows {
		all = all.With(f.Row, f.build, on)
	}
	return all
}

// operations are a writer's operations, weighted by the intensities of the faults.
func operations(on map[string]float64) []operation {
	all := []operation{{weight: 58, ending: commit, run: (*writer).appendOnce}}
	for _, f := range faultRows {
		for _, o := range f.writer {
			o.weight *= on[f.Name]
			o.counts = f.Counts[0]
			all = append(all, o)
		}
	}
	return append(all, operation{weight: 6, ending: commit, run: (*writer).appendSeveral, counts: severalAggregates})
}
