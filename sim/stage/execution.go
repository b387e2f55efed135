// Package stage has what runs of events and of jobs share.
package stage

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/harness"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
	"github.com/pgfrontier/worker/sim/server"
)

// Execution is a run under way: what has been recorded of it.
type Execution struct {
	Plan     Plan
	Driver   Driver // in place of the workers and their faults; nil: they are in this process
	Began    time.Time
	Tally    Tally
	History  *history.History
	Evidence history.Evidence
	server   *server.Instance
}

// NewExecution begins a run with consumers or queues of these names.
func NewExecution(p Plan, on *server.Instance, driver Driver, consumers []string) *Execution {
	x := &Execution{Plan: p, Driver: driver, Began: time.Now(), server: on}
	x.History = history.New(x.Began)
	x.History.Add("", "", history.RunBegan, history.Header{Seed: p.Seed, Repeat: p.Repeat, Workers: p.Workers, Writers: p.Writers, Consumers: consumers})
	x.Evidence.History = x.History
	return x
}

// Execute lets the actors act, then demands that everything comes to rest, while others
// observe that. When it returns, none of them is left: stop has ended the workers.
func (x *Execution) Execute(ctx context.Context, act, rest func(context.Context) error, stop func(context.Context), observe ...func(context.Context)) error {
	observed, stopObserving := context.WithCancel(ctx)
	var observers sync.WaitGroup
	for _, o := range observe {
		observers.Go(func() { o(observed) })
	}
	defer observers.Wait()
	defer stopObserving()
	defer stop(ctx)
	if err := act(ctx); err != nil {
		return err
	}
	return rest(ctx)
}

// Drive runs the driver. If the driver has lost the server, waits for the server end.
func (x *Execution) Drive(ctx, intake context.Context, env Env) error {
	env.Bounds, env.History, env.Database, env.Began, env.Refresh = x.server.Bounds, x.History, x.server.Name, x.Began, x.server.Refresh
	err := x.Driver.Run(ctx, intake, env)
	if harness.Is(err) {
		x.server.Lost(err)
	}
	return err
}

// Stop records how workers of this process have ended, and ends those of the driver.
func (x *Execution) Stop(ctx context.Context, exits []history.Exit) {
	x.Evidence.Exits = exits
	if x.Driver != nil {
		x.Evidence.Exits = append(x.Evidence.Exits, x.Driver.Stop(ctx)...)
	}
}

// Collect completes the evidence of a run that ended with err. It also reads the evidence of a run
// that could not go on: what is broken in it is broken.
func (x *Execution) Collect(ctx context.Context, err error, read func() error) {
	e := &x.Evidence
	if err != nil {
		e.Incomplete = true
		Blame(e, err)
	}
	if err != nil && !x.server.Answers(ctx) {
		e.Unread = true
		return
	}
	if err := read(); err != nil {
		e.Incomplete, e.Unread = true, true
		Blame(e, err)
	}
}

// Report says what the run was, with the faults of a table that were on, and judges it. It
// returns the error with which ctx ended, and err, if ctx has.
func (x *Execution) Report(ctx context.Context, err error, faults fault.Table, on map[string]float64, first ...history.Fault) (*oracle.Report, error) {
	r := x.Plan.Report(x.Began)
	r.Interrupted, r.Server = ctx.Err() != nil, x.server.Version
	r.Faults, r.Counts = faults.On(on, x.Tally.Count), x.Tally.All(faults.Counters(first...))
	can := x.server.Can
	can.Own = can.Own || x.Driver != nil // a driver has a server of its own
	r.Knobs = append(r.Knobs, faults.Unmet(can)...)
	if x.Driver != nil {
		x.Driver.Annotate(r, x.Tally.Count)
	}
	r.Judge(&x.Evidence)
	if r.Interrupted {
		return r, errors.Join(ctx.Err(), err)
	}
	return r, nil
}

// Plan is what was decided about a run before it begins, beside its scenario.
type Plan struct {
	Seed     uint64
	Workers  int
	Writers  int
	Duration time.Duration
	Bounds   harness.Bounds
	Repeat   string         // the command that runs this again
	Lines    []oracle.Line  // the drawn knobs as a person reads them
	Progress func(Progress) // nil: nobody asks
}

// Progress is how far a run has come.
type Progress struct {
	Elapsed  time.Duration
	Appended int64 // events
	Handled  int64 // events, by the consumer that has handled the fewest
	Crashes  int64
	Lag      int64 // positions, of the consumer that is furthest behind
}

// Report is a report of what was decided before the run.
func (p Plan) Report(began time.Time) *oracle.Report {
	return &oracle.Report{
		Seed: p.Seed, Repeat: p.Repeat, Workers: p.Workers, Writers: p.Writers,
		Began: began.UTC(), Seconds: time.Since(began).Seconds(), Slowness: max(p.Bounds.Slowness, 1),
		Knobs: append(p.Lines, oracle.Line{Name: "machine", Value: p.Bounds.String()}),
	}
}

// RestBound is how long everything may take to come to rest after the last
// fault: what a disturbed worker may wait before it tries again, and the time
// to work off what it is behind on a machine that is busy with other things.
func RestBound(behind int64) time.Duration {
	return 20*time.Second + time.Duration(behind)*5*time.Millisecond
}

// SampleEvery is how often a run reads how far it has come.
const SampleEvery = 100 * time.Millisecond

// Blame records why a run could not go on: the harness could not, or something failed
// that nothing explains. Errors that were joined are blamed one by one.
func Blame(e *history.Evidence, err error) {
	all := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		all = joined.Unwrap()
	}
	for _, err := range all {
		x := harness.Explain(err)
		switch {
		case x == nil:
			e.Failures = append(e.Failures, OneLine(err))
		case e.Harness == nil:
			e.Harness = &history.HarnessFailure{Step: x.Step, Bound: x.Bound, Error: OneLine(x.Err)}
		}
	}
}

// OneLine is the text of an error on one line.
func OneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
