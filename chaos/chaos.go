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
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/harness"
	"github.com/pgfrontier/worker/sim/oracle"
)

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
