package sim

import (
	"context"
	"time"

	"github.com/pgfrontier/worker/sim/harness"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

// Driver drives a run whose workers and faults are not the simulation's own.
type Driver interface {
	// Run runs the workers and injects faults until intake ends. It leaves
	// workers into which nothing is injected any more, and a server that is well.
	Run(ctx, intake context.Context, env Env) error
	// Stop ends the workers and tells how all of them ended. It is called once,
	// also if Run was not.
	Stop(ctx context.Context) []history.Exit
	// Annotate adds to a report what only the driver knows: its faults, as often
	// as they were counted.
	Annotate(r *oracle.Report, counted func(history.Fault) int64)
}

// Env is what a driver is given of a run.
type Env struct {
	Scenario Scenario
	Bounds   harness.Bounds
	History  *history.History
	Database string // its name
	Began    time.Time
	// Count counts a fault.
	Count func(history.Fault)
	// Take takes down what a worker process tells.
	Take func(history.Record)
	// Fault takes down that something happens to a worker, and Lose that it is gone.
	Fault, Lose func(worker string)
	// Outage takes down that a fault kept the server from its work from then until now.
	Outage func(from time.Time)
	// Refresh gives up the harness's idle connections, which may lead nowhere
	// after what was done to the server.
	Refresh func()
	// The rest is for a run of events.

	// Breached takes note of a batch whose handler broke the rules.
	Breached func(history.Breach)
	// Save makes a cold copy of the server by a change of it, and PutBack puts that
	// copy back. What was committed in between is gone, and the report knows. They
	// report false if there is nothing to copy yet, or if the copy would forget what
	// does not happen again.
	Save, PutBack func(ctx context.Context, change func(context.Context) error) (bool, error)
}

// RunDriver runs a scenario as Run does, with a driver in place of the workers,
// on a server that may go away meanwhile, and comes back. The writers do not
// mind.
func RunDriver(ctx context.Context, c Config, scenario Scenario, driver Driver) (report *oracle.Report, err error) {
	return start(ctx, c, scenario, driver)
}

// drive runs a driver. If the driver has lost the server, waits for the server end.
func (d *database) drive(ctx, intake context.Context, driver Driver, env Env) error {
	err := driver.Run(ctx, intake, env)
	if harness.Is(err) {
		d.gone.Store(&err)
	}
	return err
}

func (s *simulation) env() Env {
	return Env{
		Scenario: s.scenario, Bounds: s.on.bounds, History: s.history, Database: s.on.name, Began: s.began,
		Count:    s.count,
		Take:     s.history.Take,
		Fault:    func(string) {},
		Lose:     func(string) {},
		Outage:   func(time.Time) {},
		Breached: s.breached,
		Refresh:  s.on.refresh,
		Save:     s.on.save,
		PutBack:  s.on.putBack,
	}
}

func (s *jobSimulation) env() Env {
	return Env{
		Scenario: s.scenario, Bounds: s.on.bounds, History: s.history, Database: s.on.name, Began: s.began,
		Count: func(f history.Fault) { s.tally.add(f, 1) },
		Take: func(r history.Record) {
			if !s.book.take(r) {
				s.history.Take(r)
			}
		},
		Fault:    func(worker string) { s.book.fault(worker) },
		Lose:     s.book.crash,
		Outage:   s.book.outage,
		Refresh:  s.on.refresh,
		Breached: func(history.Breach) {},
	}
}
