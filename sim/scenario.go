package sim

import (
	"time"

	"github.com/pgfrontier/worker/sim/events"
	"github.com/pgfrontier/worker/sim/harness"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/jobs"
	"github.com/pgfrontier/worker/sim/oracle"
)

// Scenario is all that the seed decides before a run begins.
type Scenario struct {
	Seed   uint64
	Knobs  events.Knobs
	Faults Intensities
	Scope  []history.Scope // the consumers
	Jobs   *jobs.Knobs     // the settings of a run of jobs; nil: it is one of events
}

// Draw makes the scenario of a seed.
func Draw(c Config) Scenario {
	if c.Jobs {
		s := jobs.Draw(c.Seed, c.Duration, c.Faults)
		return Scenario{Seed: s.Seed, Jobs: &s.Knobs, Faults: s.Faults}
	}
	s := events.Draw(c.Seed, c.Consumers, c.Duration, c.Faults)
	return Scenario{Seed: s.Seed, Knobs: s.Knobs, Faults: s.Faults, Scope: s.Scope}
}

// events is the scenario of a run of events.
func (s Scenario) events() events.Scenario {
	return events.Scenario{Seed: s.Seed, Knobs: s.Knobs, Faults: s.Faults, Scope: s.Scope}
}

// jobs is the scenario of a run of jobs.
func (s Scenario) jobs() jobs.Scenario {
	return jobs.Scenario{Seed: s.Seed, Knobs: *s.Jobs, Faults: s.Faults}
}

// Suspension bounds for how long a worker stands still to become a zombie. A worker of jobs wakes
// up soon after others were given its jobs, while they run them.
func (s Scenario) Suspension() (low, high time.Duration) {
	if k := s.Jobs; k != nil {
		given := k.HeartbeatTimeout + k.RescueDelay
		return given, given + 2*time.Second
	}
	return 200 * time.Millisecond, 2 * s.Knobs.HeartbeatTimeout
}

// Outage is after how long at most a crashed worker is replaced.
func (s Scenario) Outage() time.Duration {
	if s.Jobs != nil {
		return s.Jobs.Outage
	}
	return s.Knobs.Outage
}

// EndBound is how long a worker that is told to end may take: to finish what it has in flight, and
// to leave.
func (s Scenario) EndBound(b harness.Bounds) time.Duration {
	if s.Jobs != nil {
		return s.Jobs.EndBound(b)
	}
	return s.Knobs.EndBound(b)
}

// Lines are the drawn knobs as a person reads them.
func (s Scenario) Lines() []oracle.Line {
	faults := oracle.Line{Name: "faults", Value: s.Faults.String()}
	if s.Jobs != nil {
		return append([]oracle.Line{faults}, s.Jobs.Lines()...)
	}
	return append([]oracle.Line{faults}, s.events().Lines()...)
}
