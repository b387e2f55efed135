package sim

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/sim/events"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/jobs"
	"github.com/pgfrontier/worker/sim/network"
	"github.com/pgfrontier/worker/sim/oracle"
	"github.com/pgfrontier/worker/sim/stage"
)

// RunDriver runs a scenario as Run does, with a driver in place of the workers. The server may go
// away for a while: the writers go on afterwards.
func RunDriver(ctx context.Context, c Config, scenario Scenario, driver Driver) (report *oracle.Report, err error) {
	return start(ctx, c, scenario, driver)
}

// Driver drives a run whose workers and faults are not the simulation's own.
type Driver = stage.Driver

// Env is what a driver is given of a run.
type Env = stage.Env

// Role is what a worker process of a run needs to know.
type Role struct {
	stage.Role
	Scenario Scenario
}

// Run runs the worker until ctx ends or the worker fails. It calls tell with each record at once.
// An order makes a handler break the rules at an event, if one comes soon. The following record
// says that a transaction was ended, or that this fault is over.
func (r Role) Run(ctx context.Context, orders <-chan struct{}, tell func(history.Record)) error {
	config, err := pgx.ParseConfig(r.URL)
	if err != nil {
		return errors.New("sim: the connection string cannot be parsed (not shown, it may hold a password)")
	}
	config.RuntimeParams["application_name"] = "sim " + r.Name
	config.DefaultQueryExecMode = fault.OneOf(fault.Dice(r.Scenario.Seed, "node "+r.Name), network.ExecModes...)
	if r.Scenario.Jobs != nil {
		return jobs.RunWorker(ctx, r.Role, r.Scenario.jobs(), config, tell)
	}
	return events.RunWorker(ctx, r.Role, r.Scenario.events(), config, orders, tell)
}
