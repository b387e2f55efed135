package sim

import (
	"maps"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/jobs"
	"github.com/pgfrontier/worker/sim/oracle"
)

// smallJobs is a run of jobs of a few seconds, with some faults.
func smallJobs(t *testing.T, faults Intensities) Config {
	return Config{URL: pgtest.Server(t).URL(""), Jobs: true, Workers: 3, Writers: 8, Consumers: 1, Duration: 4 * time.Second, Seed: 1, Faults: faults}
}

func TestRunOfJobsHolds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		faults Intensities
		counts []history.Fault // of which one must happen
	}{
		"workers end":         {Intensities{"crash": 3, "vanish": 1, "restart": 1}, []history.Fault{history.Crashes, history.CommitCrashes}},
		"connections break":   {Intensities{"cut": 3, "stall": 2, "kill-work": 1, "kill-lock": 1}, []history.Fault{history.Cuts}},
		"handlers fail":       {Intensities{"error": 1, "retry": 1, "snooze": 1, "fail": 1, "discard": 1, "panic": 1, "goexit": 1, "hang": 1, "undo": 1}, nil},
		"operators operate":   {Intensities{"pause": 1, "cap": 2, "cancel": 2, "again": 1}, counts(jobs.Faults, "cap", "cancel")},
		"events ask for jobs": {Intensities{"emitter": 2, "replay": 2, "tidy": 2, "delay": 2, "quit": 1}, counts(jobs.Faults, "emitter", "replay")},
		"schedules move on":   {Intensities{"tick": 3, "halt": 2, "forget": 2, "restart": 2, "crash": 1}, counts(jobs.Faults, "tick", "halt", "forget")},
		"flows run on":        {Intensities{"tell": 3, "abort": 2, "revive": 3, "skip": 1, "cancel": 1, "again": 1, "crash": 1}, counts(jobs.Faults, "tell", "abort", "revive")},
		"enqueuers break up":  {Intensities{"rollback": 2, "delay": 2, "lose": 2, "quit": 2}, counts(jobs.Faults, "rollback", "lose", "quit")},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "flows run on" {
				tier.Long(t, "TestRunOfJobsHolds, of which one kind of faults runs")
			}
			happened := anyOf(c.counts...)
			holds(t, smallJobs(t, c.faults), func(r *oracle.Report) string {
				switch {
				case r.Jobs.Completed == 0:
					return "a job that completed"
				case r.Evidence.Jobs.Emitted.Again == 0:
					return "an event that a consumer handled again"
				case len(c.counts) == 0:
					return ""
				}
				return happened(r)
			})
		})
	}
}

// A seed draws the same each time, and faults of both kinds of runs can be told.
func TestJobFaultsAreParsed(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		drawn := Draw(Config{Seed: seed, Jobs: true}).Faults
		parsed, err := Faults(true).Parse(drawn.String())
		if err != nil || !maps.Equal(parsed, drawn) {
			t.Fatalf("seed %d: drawn %v, parsed %v, %v", seed, drawn, parsed, err)
		}
	}
	if all := Intensities(Faults(true).All()).String(); all != "all" {
		t.Errorf("all faults are %q", all)
	}
}
