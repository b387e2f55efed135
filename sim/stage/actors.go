package stage

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/pgfrontier/worker/sim/harness"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

// Actors are all who are at work in a run, side by side, until intake ends. One that
// fails ends the others.
type Actors struct {
	ctx, intake context.Context
	over        context.CancelFunc // ends intake

	all  sync.WaitGroup
	mu   sync.Mutex
	errs []error
}

// NewActors returns the Actors of a run, before there are any. over ends intake.
func NewActors(ctx, intake context.Context, over context.CancelFunc) *Actors {
	return &Actors{ctx: ctx, intake: intake, over: over}
}

// Beside runs what cannot fail beside the actors.
func (a *Actors) Beside(do func()) { a.all.Go(do) }

// Run runs an actor.
func (a *Actors) Run(actor func(ctx, intake context.Context) error) {
	a.all.Go(func() {
		if err := actor(a.ctx, a.intake); err != nil && a.ctx.Err() == nil {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.errs = append(a.errs, err)
			a.over()
		}
	})
}

// Wait waits for all of them, and returns why they failed.
func (a *Actors) Wait() error {
	a.all.Wait()
	return errors.Join(a.errs...)
}

// EnsureAll makes sure that a worker runs in each place.
func EnsureAll[P interface{ EnsureRunning(context.Context) error }](ctx context.Context, places []P) error {
	for _, s := range places {
		if err := s.EnsureRunning(ctx); err != nil {
			return err
		}
	}
	return nil
}

// StopAll ends all workers, and returns how they and those before them ended.
func StopAll[P interface {
	Stop(context.Context) []history.Exit
}](ctx context.Context, places []P) (all []history.Exit) {
	var wg sync.WaitGroup
	exits := make([][]history.Exit, len(places))
	for i, s := range places {
		wg.Go(func() { exits[i] = s.Stop(ctx) })
	}
	wg.Wait()
	for _, x := range exits {
		all = append(all, x...)
	}
	return all
}

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
	Bounds   harness.Bounds
	History  *history.History
	Database string // its name
	Began    time.Time
	// Count counts a fault.
	Count func(history.Fault)
	// Take takes a record of a worker process.
	Take func(history.Record)
	// Fault records that something happens to a worker, and Lose that it is gone.
	Fault, Lose func(worker string)
	// Outage records that a fault kept the server from its work from then until now.
	Outage func(from time.Time)
	// Refresh gives up the harness's idle connections, which may lead nowhere
	// after what was done to the server.
	Refresh func()
	// The rest is for a run of events.

	// Breached records a batch whose handler broke the rules.
	Breached func(history.Breach)
	// Save makes a cold copy of the server by a change of it, and PutBack puts that
	// copy back. What was committed in between is gone, and the report knows. They
	// report false if there is nothing to copy yet, or if the copy would forget what
	// does not happen again.
	Save, PutBack func(ctx context.Context, change func(context.Context) error) (bool, error)
}
