//go:build unix

// Package chaos does to real processes and real servers what package sim does
// in one process, with workers of events or of jobs. Worker processes are killed and
// stopped. Their connections die in silence or lead to a lagging replica. The
// server is killed, runs out of disk and of connections, and is replaced by its
// replica. In a run of events, handlers end the transaction that they are given, an
// operator changes how many partitions a consumer has, and the server is set back to a
// copy. In a run of jobs, all processes are replaced as a deployment does it. The
// writers, the enqueuers and the oracle are those of the simulation.
package chaos

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/pgfrontier/worker/sim"
	"github.com/pgfrontier/worker/sim/bundle"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/harness"
	"github.com/pgfrontier/worker/sim/oracle"
)

// Config is what a person decides about a run; the seed decides the rest.
type Config struct {
	Workers   int           // processes, 1 to 50
	Writers   int           // 1 to 200, in this process
	Consumers int           // 1 to 50; a third of them want some aggregate types only
	Duration  time.Duration // of the part with faults, 1s to 24h; setting up and coming to rest are added
	Seed      uint64
	Faults    Faults // nil: the seed draws how intense each is
	Jobs      bool   // workers of jobs, in place of those of consumers, and enqueuers in place of writers

	// Program is the command of a worker process, which is to call Worker.
	Program []string
	// Ahead, if set, is that of the first one in place of Program: the same, with a clock
	// that is an hour ahead.
	Ahead []string
	// Patience is how many times as long the harness waits; 0 is 1. A run that was not
	// judged is repeated with 2.
	Patience float64
	// Judged, if set, is told the report while the servers and what they have
	// written to their logs are still there.
	Judged func(*oracle.Report, []bundle.Log) error
	// Progress, if set, is called a few times a second, from one goroutine.
	Progress func(sim.Progress)
}

// DefaultConfig is a run of ten minutes.
func DefaultConfig() Config {
	return Config{Workers: 5, Writers: 8, Consumers: 6, Duration: 10 * time.Minute}
}

// Enough is how long a run must be for every fault that is on to happen.
const Enough = 10 * time.Minute

// sim is what the simulation knows of a run.
func (c Config) sim() sim.Config {
	same := c.sameAs()
	faults := ""
	if c.Faults != nil {
		faults = c.rows().table().Format(c.Faults)
	}
	// Writers, enqueuers, handlers and operators do everything that they can.
	program := "go run ./cmd/chaos"
	if c.Ahead != nil {
		program += " -ahead"
	}
	same.Faults = sim.Faults(false).All()
	if c.Jobs {
		program += " -jobs"
		same.Faults = sim.Faults(true).All()
		same.Faults["linger"] = 8 // so that a process that is killed has jobs in flight
		same.Faults["pause"] = 0.3
	}
	same.Repeat = same.CommandLine(program, DefaultConfig().sameAs(), faults)
	same.Progress = c.Progress
	return same
}

// sameAs is what both are told in the same way.
func (c Config) sameAs() sim.Config {
	return sim.Config{Workers: c.Workers, Writers: c.Writers, Consumers: c.Consumers, Duration: c.Duration, Seed: c.Seed, Jobs: c.Jobs}
}

// Validate reports the first value out of range.
func (c Config) Validate() error { return c.sim().Validate() }

// Run runs worker processes on servers of its own and reports what the oracle
// found. What the harness could not do is in the report, too. An error says that c
// cannot be run, that the server did not start, or that ctx ended; then there is a
// report of what was done until then. Nothing is left running.
func Run(ctx context.Context, c Config) (report *oracle.Report, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	p := &processes{config: c, faults: maps.Clone(c.Faults)}
	if p.faults == nil {
		p.faults = c.rows().draw(fault.Dice(c.Seed, "faults"))
	}
	simulated := c.sim()
	const spare = 30
	dead := 8*c.Workers + 2*c.Consumers // connections that the server still takes for alive
	p.cluster, p.cannot, err = startCluster(ctx, simulated.Connections()+dead+spare, p.faults, c.Patience)
	if harness.Is(err) {
		return sim.NotStarted(ctx, simulated, err)
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, sim.Blame(report, p.cluster.stop(ctx))) }()
	for name := range p.cannot {
		delete(p.faults, name)
	}
	simulated.URL, simulated.Bounds = p.cluster.url("postgres"), p.cluster.bounds
	p.scenario = draw(simulated)
	report, err = sim.RunDriver(ctx, simulated, p.scenario, p)
	if report != nil && c.Judged != nil {
		err = errors.Join(err, c.Judged(report, p.cluster.logs()))
	}
	return report, err
}

// draw is the scenario of a seed: that of the simulation, with writers that a
// long run can keep up with.
func draw(c sim.Config) sim.Scenario {
	s := sim.Draw(c)
	s.Knobs.Pause = 100 * time.Millisecond
	if s.Jobs != nil {
		// Processes share the machine with a server that is started again and again.
		s.Jobs.HeartbeatTimeout += 1500 * time.Millisecond
		s.Jobs.Caps = []int{0, 0, 5, 20} // fewer than all slots, and room enough for jobs to be in flight
	}
	return s
}
