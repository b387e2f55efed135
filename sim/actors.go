package sim

import (
	"context"
	"errors"
	"sync"

	"github.com/pgfrontier/worker/sim/history"
)

// actors are all who are at work in a run, side by side, until intake ends. One that
// fails ends the others.
type actors struct {
	ctx, intake context.Context
	over        context.CancelFunc // ends intake

	all  sync.WaitGroup
	mu   sync.Mutex
	errs []error
}

func (a *actors) run(actor func(ctx, intake context.Context) error) {
	a.all.Go(func() {
		if err := actor(a.ctx, a.intake); err != nil && a.ctx.Err() == nil {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.errs = append(a.errs, err)
			a.over()
		}
	})
}

// wait waits for all of them, and returns why they failed.
func (a *actors) wait() error {
	a.all.Wait()
	return errors.Join(a.errs...)
}

// ensureAll sees to it that a worker runs in each place.
func ensureAll[P interface{ ensureRunning(context.Context) error }](ctx context.Context, places []P) error {
	for _, s := range places {
		if err := s.ensureRunning(ctx); err != nil {
			return err
		}
	}
	return nil
}

// stopAll ends all workers, and returns how they and those before them ended.
func stopAll[P interface {
	stop(context.Context) []history.Exit
}](ctx context.Context, places []P) (all []history.Exit) {
	var wg sync.WaitGroup
	exits := make([][]history.Exit, len(places))
	for i, s := range places {
		wg.Go(func() { exits[i] = s.stop(ctx) })
	}
	wg.Wait()
	for _, x := range exits {
		all = append(all, x...)
	}
	return all
}
