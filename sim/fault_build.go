package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
)

const (
	narrowBuilds   history.Fault = "workers of a build that selects fewer types"
	oddSettings    history.Fault = "workers whose sessions have unusual settings"
	otherTimeouts  history.Fault = "workers with time-outs of their own"
	narrowBuildsOn               = "builds"
	timeoutsOn                   = "timeouts"
)

// build is how a fault changes the scenario for one worker, as that starts.
type build func(s *Scenario, dice *rand.Rand)

// buildFaults are what differs between the workers of one deployment.
var buildFaults = []faultRow{
	{
		Row: fault.Row{
			Name: narrowBuildsOn, Does: "lets half of the workers run a build of a consumer that selects fewer types",
			Counts: []history.Fault{narrowBuilds},
		},
		build: func(s *Scenario, _ *rand.Rand) { s.Scope = narrow(s.Scope) },
	},
	{Row: settingsRow, build: setOddly},
	{Row: timeoutsRow, build: setTimeouts},
}

var (
	settingsRow = fault.Row{
		Name: "settings", Does: "gives the sessions of half of the workers settings that are not the usual ones",
		Counts: []history.Fault{oddSettings},
	}
	timeoutsRow = fault.Row{
		Name: timeoutsOn, Does: "gives half of the workers other heartbeats and time-outs",
		Counts: []history.Fault{otherTimeouts},
	}
)

// grown is a consumer for which some builds select a type that others do not.
var grown = history.Scope{Name: "grown-1", Types: []string{"order", "cart"}, Sometimes: []string{"account"}}

// narrow leaves out the types that only some builds select.
func narrow(all []history.Scope) []history.Scope {
	all = slices.Clone(all)
	for i := range all {
		all[i].Sometimes = nil
	}
	return all
}

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

func setOddly(s *Scenario, dice *rand.Rand) { s.settings = oneOf(dice, settings...) }

// The shortest and the longest time-outs that a worker has, in those of the run.
const shortest, longest = 0.6, 2.5

func setTimeouts(s *Scenario, dice *rand.Rand) {
	factor := oneOf(dice, shortest, 1.5, longest)
	times := func(d *time.Duration) { *d = time.Duration(float64(*d) * factor).Round(time.Millisecond) }
	if s.Jobs != nil {
		k := *s.Jobs
		times(&k.HeartbeatInterval)
		times(&k.HeartbeatTimeout)
		s.Jobs = &k
		return
	}
	times(&s.Knobs.HeartbeatInterval)
	times(&s.Knobs.HeartbeatTimeout)
}

// builds are those of the faults that are on, and what they are counted as.
type builds []struct {
	change build
	counts history.Fault
}

// with adds the build of a fault, if it has one and is on.
func (all builds) with(r fault.Row, change build, on Intensities) builds {
	if change == nil || on[r.Name] == 0 {
		return all
	}
	return append(all, struct {
		change build
		counts history.Fault
	}{change, r.Counts[0]})
}

// of returns the scenario for the life-th worker of a slot: about half of the workers have
// each of the builds.
func (all builds) of(s Scenario, slot, life int, t *tally) Scenario {
	dice := fault.Dice(s.Seed, fmt.Sprintf("build %d.%d", slot, life))
	for _, b := range all {
		if chance(dice, 0.5) {
			b.change(&s, dice)
			t.add(b.counts, 1)
		}
	}
	return s
}
