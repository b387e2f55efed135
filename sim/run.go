package sim

import (
	"context"
	"errors"

	"github.com/pgfrontier/worker/sim/events"
	"github.com/pgfrontier/worker/sim/harness"
	"github.com/pgfrontier/worker/sim/jobs"
	"github.com/pgfrontier/worker/sim/oracle"
	"github.com/pgfrontier/worker/sim/server"
	"github.com/pgfrontier/worker/sim/stage"
)

// Run runs the scenario of c.Seed in a database of its own and reports what the oracle found, and
// what the harness could not do. It returns an error if c cannot be run on that server, or if ctx
// ended. In the second case there is a report of what was done until then.
func Run(ctx context.Context, c Config) (report *oracle.Report, err error) {
	return start(ctx, c, Draw(c), nil)
}

// start measures the machine, makes a database and runs a scenario in it.
func start(ctx context.Context, c Config, scenario Scenario, driver Driver) (report *oracle.Report, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	address, err := server.ParseURL(c.URL)
	if err != nil {
		return nil, err
	}
	if c.Bounds == (harness.Bounds{}) {
		if c.Bounds, err = harness.Measure(ctx, address); err != nil {
			return NotStarted(ctx, c, err)
		}
	}
	c.Bounds = c.Bounds.Times(c.Patience)
	on, err := server.Create(ctx, address, c.Bounds, events.Tables...)
	if err != nil {
		return NotStarted(ctx, c, err)
	}
	if c.made != nil {
		*c.made = append(*c.made, on.Name)
	}
	on.Mortal = driver != nil
	defer func() { err = errors.Join(err, Blame(report, on.Drop())) }()
	if err := on.Room(ctx, c.Connections()); err != nil {
		if harness.Is(err) {
			return NotStarted(ctx, c, err)
		}
		return nil, err
	}
	if c.Jobs {
		return runJobs(ctx, c, scenario, on, driver)
	}
	return run(ctx, c, scenario, on, driver)
}

// run runs a scenario of events in the database on; without a driver, with workers in this
// process.
func run(ctx context.Context, c Config, scenario Scenario, on *server.Database, driver Driver) (*oracle.Report, error) {
	instance := server.NewInstance(on, c.Server)
	scenario.Faults = events.Faults.Able(scenario.Faults, instance.Can)
	s, err := events.New(ctx, c.plan(scenario), scenario.events(), instance, driver)
	if err != nil {
		return NotStarted(ctx, c, err)
	}
	return s.Run(ctx)
}

// runJobs runs a scenario of jobs in the same way.
func runJobs(ctx context.Context, c Config, scenario Scenario, on *server.Database, driver Driver) (*oracle.Report, error) {
	instance := server.NewInstance(on, c.Server)
	scenario.Faults = jobs.Faults.Able(scenario.Faults, instance.Can)
	s, err := jobs.New(ctx, c.plan(scenario), scenario.jobs(), instance, driver)
	if err != nil {
		return NotStarted(ctx, c, err)
	}
	return s.Run(ctx)
}

// plan is what c decides about a run of a scenario.
func (c Config) plan(s Scenario) stage.Plan {
	return stage.Plan{
		Seed: c.Seed, Workers: c.Workers, Writers: c.Writers, Duration: c.Duration, Bounds: c.Bounds,
		Repeat: c.command(), Lines: s.Lines(), Progress: c.Progress,
	}
}

// Connections is about how many connections a run has open at its busiest: of workers, of
// consumers, some twice because a crashed worker's linger, of writers and of the harness.
func (c Config) Connections() int {
	if c.Jobs {
		return jobs.Connections(c.Workers, c.Writers)
	}
	return 8*c.Workers + 2*c.Consumers + c.Writers + 12
}
