package jobs

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
	"github.com/pgfrontier/worker/sim/stage"
)

// faultRows are all faults of a run of jobs. The order is that of -h, and of what
// a seed draws.
var faultRows = slices.Concat(workerFaults, serverFaults, handlerFaults, operatorFaults, emitterFaults, enqueueFaults, scheduleFaults, flowFaults, mannerFaults)

// Faults has the fault.Row of each of faultRows.
var Faults = func() (t fault.Table) {
	for _, f := range faultRows {
		t = append(t, f.Row)
	}
	return t
}()

// injections are the injections of all faults, each as often as its fault is intense.
func injections(on map[string]float64) (all []fault.Card[injection]) {
	for _, f := range faultRows {
		for _, i := range f.worker {
			all = append(all, fault.Card[injection]{What: i, Times: on[f.Name]})
		}
	}
	return all
}

// drawFaults draws about half of the faults, and how intense each is.
func drawFaults(seed uint64) map[string]float64 {
	r, drawn := fault.Dice(seed, "faults of jobs"), map[string]float64{}
	for _, f := range faultRows {
		likely := 0.55
		if f.seldom {
			likely = 0.25
		}
		on, factor := fault.Chance(r, likely), fault.OneOf(r, 0.5, 1, 1, 2)
		if on {
			drawn[f.Name] = factor
		}
	}
	if anyOn(drawn, func(f faultRow) bool { return f.async }) {
		drawn["server-crash"] = max(drawn["server-crash"], 1) // or nothing is taken back
	}
	return drawn
}

// anyOn reports whether a fault of a kind is on.
func anyOn(on map[string]float64, is func(faultRow) bool) bool {
	return slices.ContainsFunc(faultRows, func(f faultRow) bool { return on[f.Name] > 0 && is(f) })
}

// counters are what a run of jobs counts before its faults, in the order of printing.
var counters = []history.Fault{enqueuesCommitted, stage.Conflicts, stage.TransactionsBrokenOff, stage.SlowStarts}

// Draw makes the scenario of a seed, for a duration. If faults is nil, the seed draws them.
func Draw(seed uint64, duration time.Duration, faults map[string]float64) Scenario {
	r := fault.Dice(seed, "scenario of jobs")
	s := Scenario{Seed: seed, Knobs: drawKnobs(r), Faults: faults}
	k := &s.Knobs
	k.Calm = min(max(duration/8, 300*time.Millisecond), 2250*time.Millisecond)
	if s.Faults == nil {
		s.Faults = drawFaults(seed)
	}
	if s.Faults["kill-listener"] > 0 {
		k.Listeners = max(k.Listeners, 0.5)
	}
	if s.Faults["kill-lock"] > 0 {
		k.Leader = jobs.LeaderStrategyAdvisory
	}
	return s
}

// Lines are the drawn knobs as a person reads them.
func (k Knobs) Lines() []oracle.Line {
	var queues []string
	for _, q := range k.Queues {
		queues = append(queues, fmt.Sprintf("%s (%d at once)", q.Name, q.Concurrency))
	}
	var schedules []string
	for _, s := range workerSchedules {
		schedules = append(schedules, s.String())
	}
	total := "no bound"
	if k.Concurrency > 0 {
		total = fmt.Sprintf("%d at once", k.Concurrency)
	}
	return []oracle.Line{
		{Name: "queues", Value: strings.Join(queues, ", ")},
		{Name: "a worker", Value: fmt.Sprintf("%s of all queues, %d connections", total, k.Pool)},
		{Name: "prefetch", Value: fmt.Sprint(k.Prefetch)},
		{Name: "poll", Value: fmt.Sprintf("every %v; %.0f%% of the workers listen", k.PollInterval, 100*k.Listeners)},
		{Name: "leader", Value: string(k.Leader)},
		{Name: "heartbeat", Value: fmt.Sprintf("every %v, dead after %v", k.HeartbeatInterval, k.HeartbeatTimeout)},
		{Name: "rescue", Value: fmt.Sprintf("after %v", k.RescueDelay)},
		{Name: "stop", Value: fmt.Sprintf("waits for %v", k.ShutdownTimeout)},
		{Name: "handlers", Value: fmt.Sprintf("take at most %v, %d jobs a batch", k.HandlerTimeout, k.BatchSize)},
		{Name: "schedules", Value: strings.Join(schedules, ", ")},
		{Name: "flows", Value: strings.Join(flowNames(), ", ")},
		{Name: "transactions", Value: fmt.Sprintf("of enqueuers, open for up to %v", k.LongestTx)},
	}
}
