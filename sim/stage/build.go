package stage

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
)

const (
	oddSettings   history.Fault = "workers whose sessions have unusual settings"
	otherTimeouts history.Fault = "workers with time-outs of their own"
	TimeoutsOn                  = "timeouts"
)

// Build is how a fault changes the scenario S of a run for one worker, as that starts.
type Build[S any] func(s *S, dice *rand.Rand)

var (
	SettingsRow = fault.New("settings", "gives the sessions of half of the workers settings that are not the usual ones", oddSettings)
	TimeoutsRow = fault.New(TimeoutsOn, "gives half of the workers other heartbeats and time-outs", otherTimeouts)
)

// settings are what a role or a database can have been given. Workers set back what they
// depend on, and their statements name what they need.
var settings = []map[string]string{
	{"default_transaction_isolation": "serializable"},
	{"default_transaction_isolation": "repeatable read", "default_transaction_deferrable": "on"},
	{"lock_timeout": "1s", "statement_timeout": "3s"},
	{"idle_in_transaction_session_timeout": "10s", "transform_null_equals": "on", "array_nulls": "off"},
	{"DateStyle": "German", "bytea_output": "escape", "IntervalStyle": "sql_standard", "TimeZone": "Asia/Kathmandu", "extra_float_digits": "-3"},
	{"quote_all_identifiers": "on", "plan_cache_mode": "force_generic_plan", "search_path": "public, pg_catalog"},
	{"enable_seqscan": "off", "jit_above_cost": "0"},
}

// DrawSettings draws the settings of one worker.
func DrawSettings(dice *rand.Rand) map[string]string { return fault.OneOf(dice, settings...) }

// The shortest and the longest time-outs of a worker, as multiples of the run's.
const Shortest, Longest = 0.6, 2.5

// ScaleTimeouts changes the time-outs of one worker.
func ScaleTimeouts(dice *rand.Rand, timeouts ...*time.Duration) {
	factor := fault.OneOf(dice, Shortest, 1.5, Longest)
	for _, d := range timeouts {
		*d = time.Duration(float64(*d) * factor).Round(time.Millisecond)
	}
}

// Builds are the builds of the faults that are on, and their counters.
type Builds[S any] []countedBuild[S]

type countedBuild[S any] struct {
	change Build[S]
	counts history.Fault
}

// With adds the build of a fault, if it has one and is on.
func (all Builds[S]) With(r fault.Row, change Build[S], on map[string]float64) Builds[S] {
	if change == nil || on[r.Name] == 0 {
		return all
	}
	return append(all, countedBuild[S]{change, r.Counts[0]})
}

// Of returns the scenario for the life-th worker of a slot: about half of the workers have
// each of the builds.
func (all Builds[S]) Of(s S, seed uint64, slot, life int, t *Tally) S {
	dice := fault.Dice(seed, fmt.Sprintf("build %d.%d", slot, life))
	for _, b := range all {
		if fault.Chance(dice, 0.5) {
			b.change(&s, dice)
			t.Add(b.counts, 1)
		}
	}
	return s
}
