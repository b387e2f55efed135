package sim

import (
	"context"
	"errors"
	"fmt"

	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

const (
	handlersFailed   history.Fault = "handlers that failed"
	handlersPanicked history.Fault = "handlers that panicked"
	handlersRefused  history.Fault = "handlers that failed at an event which did not come first"
)

// handlerFaults are handlers that fail.
var handlerFaults = []faultRow{
	{
		Row: fault.Row{
			Name: "error", Does: "lets handlers fail",
			Counts:  []history.Fault{handlersFailed},
			Reaches: []oracle.Condition{oracle.FailingHandlers},
		},
		handler: (*simulation).failHandler,
	},
	{
		Row: fault.Row{
			Name: "panic", Does: "lets handlers panic",
			Counts:  []history.Fault{handlersPanicked},
			Reaches: []oracle.Condition{oracle.FailingHandlers},
		},
		handler: (*simulation).panicHandler,
	},
	{
		Row: fault.Row{
			Name: "picky", Does: "lets handlers fail at some events, unless they come first in their batch",
			Counts: []history.Fault{handlersRefused},
		},
		handler: (*simulation).refuse,
	},
}

// failing is the share of the batches that fail, if their handlers fail as
// usual.
const failing = 0.03

func (s *simulation) failHandler(_ context.Context, b *bookkeeper, d delivered, intensity float64) (bool, error) {
	if s.over() || !d.first || !chance(b.dice, failing*intensity) {
		return false, nil
	}
	b.injected(handlersFailed, "")
	return true, errors.New("the simulation lets this handler fail")
}

func (s *simulation) panicHandler(_ context.Context, b *bookkeeper, d delivered, intensity float64) (bool, error) {
	if s.over() || !d.first || !chance(b.dice, failing*intensity) {
		return false, nil
	}
	b.injected(handlersPanicked, "")
	panic("the simulation lets this handler panic")
}

// refuse lets handlers fail at some events as long as these do not come first
// in their batch, also when the faults are over: it is for the worker to try
// them alone.
func (s *simulation) refuse(_ context.Context, b *bookkeeper, d delivered, intensity float64) (bool, error) {
	const often = 0.01 // of the events
	if d.first || !chance(fault.Dice(s.scenario.Seed, fmt.Sprintf("%s refuses %d", b.scope.Name, d.GlobalPosition)), often*intensity) {
		return false, nil
	}
	b.injected(handlersRefused, fmt.Sprintf("at position %d", d.GlobalPosition))
	return true, errors.New("the simulation lets this handler refuse an event that does not come first")
}

// inject is the injector of a run: it asks every fault of handlers that is on.
func (s *simulation) inject(ctx context.Context, b *bookkeeper, d delivered) (done bool, err error) {
	for _, f := range s.ofHandlers {
		if done, err := f.handler(s, ctx, b, d, s.scenario.Faults[f.Name]); done {
			return true, err
		}
	}
	return false, nil
}

func (s *simulation) count(f history.Fault) { s.tally.add(f, 1) }

func (s *simulation) breached(x history.Breach) {
	x.Life = s.on.life()
	s.broken.add(x)
}

// over reports whether the faults have ended.
func (s *simulation) over() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}
