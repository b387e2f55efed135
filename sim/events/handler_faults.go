package events

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
	{Row: fault.New("error", "lets handlers fail", handlersFailed).Reaching(oracle.FailingHandlers), handler: (*shared).failHandler},
	{Row: fault.New("panic", "lets handlers panic", handlersPanicked).Reaching(oracle.FailingHandlers), handler: (*shared).panicHandler},
	{Row: fault.New("picky", "lets handlers fail at some events, unless they come first in their batch", handlersRefused),
		handler: (*shared).refuse},
}

// failing is the share of batches that fail at intensity 1.
const failing = 0.03

func (s *shared) failHandler(_ context.Context, b *LedgerConsumer, d Delivered, intensity float64) (bool, error) {
	if s.over() || !d.first || !fault.Chance(b.Dice, failing*intensity) {
		return false, nil
	}
	b.injected(handlersFailed, "")
	return true, errors.New("the simulation lets this handler fail")
}

func (s *shared) panicHandler(_ context.Context, b *LedgerConsumer, d Delivered, intensity float64) (bool, error) {
	if s.over() || !d.first || !fault.Chance(b.Dice, failing*intensity) {
		return false, nil
	}
	b.injected(handlersPanicked, "")
	panic("the simulation lets this handler panic")
}

// refuse makes handlers fail at some events that are not the first of their batch, also after the
// faults are over. The worker must run such an event alone.
func (s *shared) refuse(_ context.Context, b *LedgerConsumer, d Delivered, intensity float64) (bool, error) {
	const often = 0.01 // of the events
	if d.first || !fault.Chance(fault.Dice(s.scenario.Seed, fmt.Sprintf("%s refuses %d", b.scope.Name, d.GlobalPosition)), often*intensity) {
		return false, nil
	}
	b.injected(handlersRefused, fmt.Sprintf("at position %d", d.GlobalPosition))
	return true, errors.New("the simulation lets this handler refuse an event that does not come first")
}

// contractFaults are handlers that break the rule that they must not end their
// transaction.
var contractFaults = []faultRow{{
	Row: fault.New(contractOn, "lets handlers commit or roll back, or end their transaction and go on in another",
		history.Breaches).Reaching(oracle.BrokenContracts),
	handler: (*shared).breakContract,
}}

// breakContract lets a few of the handlers break the rule.
func (s *shared) breakContract(ctx context.Context, b *LedgerConsumer, d Delivered, intensity float64) (bool, error) {
	const often = 0.002 // of the events
	return b.breach(ctx, d, func() bool { return !s.over() && fault.Chance(b.Dice, often*intensity) })
}
