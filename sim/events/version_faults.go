package events

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/stage"
)

const (
	switchOn = "switch"

	versionsSwitched history.Fault = "effects switched to the other version of a consumer by an operator"
)

// versionFaults are what operators do to two versions of a consumer.
var versionFaults = []faultRow{
	{Row: fault.New(switchOn, "runs the next version of a consumer beside it, and switches there and back, as an operator would", versionsSwitched),
		worker: at((*Slot).switchVersions, afterGuard, afterGuard)},
}

// shadow makes the next version of a consumer a shadow, before any worker runs it.
func (s Scenario) shadow(ctx context.Context, on *Database) error {
	for _, c := range s.Scope {
		if c.NextOf == "" {
			continue
		}
		o, err := ops.New(on.DB)
		if err == nil {
			err = o.Shadow(ctx, c.Name, stage.By)
		}
		if err != nil {
			return fmt.Errorf("sim: %w", err)
		}
	}
	return nil
}

// switchVersions gives the effects of one version to the other.
func (s *Slot) switchVersions(ctx, _ context.Context, _ point) error {
	i := slices.IndexFunc(s.scenario.Scope, func(c history.Scope) bool { return c.NextOf != "" })
	next := s.scenario.Scope[i]
	o, err := ops.New(s.on.DB)
	if err != nil {
		return fmt.Errorf("sim: %w", err)
	}
	bound, cancel := context.WithTimeout(ctx, s.on.Bounds.Of(awaited))
	defer cancel()
	for _, way := range [][2]string{{next.NextOf, next.Name}, {next.Name, next.NextOf}} {
		err = o.Switch(bound, way[0], way[1], stage.By, nil)
		if err == nil {
			operator{o, s, next.NextOf}.did(versionsSwitched, "to "+way[1])
			return nil
		}
		if !errors.Is(err, ops.ErrUnchanged) { // it has the effects already
			break
		}
	}
	switch {
	case errors.Is(err, ops.ErrUnchanged), errors.Is(err, ops.ErrNotFound): // another has switched meanwhile; no worker has placed it yet
		return nil
	case bound.Err() != nil && ctx.Err() == nil: // one has stopped, or is slow
		return nil
	}
	if err = s.on.Forgive(err); err != nil {
		return fmt.Errorf("sim: %w", err)
	}
	return nil
}
