package events

import (
	"context"
	"fmt"

	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/harness"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/stage"
)

// Slot is a place for a worker of consumers.
type Slot struct {
	stage.Place[*node]
	scenario Scenario
	on       *Database
	deck     *fault.Deck[injection]
}

func newSlot(number int, s Scenario, on *Database, t *stage.Tally, h *history.History, i Injector, cards []fault.Card[injection], b stage.Builds[Scenario]) *Slot {
	dice := fault.Dice(s.Seed, fmt.Sprintf("slot %d", number))
	return &Slot{
		Place: stage.Place[*node]{
			Dice: dice, On: on.Database, Tally: t, History: h, Calm: s.Knobs.Calm, Outage: s.Knobs.Outage,
			Begin: func(ctx context.Context, life int) (*node, error) {
				if s.Faults[stage.AsyncWorkersOn] > 0 {
					t.Add(stage.AsyncWorkers, 1)
				}
				return startNode(ctx, b.Of(s, s.Seed, number, life, t), on.Database, h, number, life, i)
			},
		},
		scenario: s, on: on, deck: fault.NewDeck(dice, cards),
	}
}

// injection is a way in which a fault is injected into a worker, and when.
type injection struct {
	at     point
	inject func(s *Slot, ctx, intake context.Context, at point) error
}

// at is the same injection at several points. A point that is named twice is
// drawn twice as often.
func at(inject func(s *Slot, ctx, intake context.Context, at point) error, points ...point) (all []injection) {
	for _, p := range points {
		all = append(all, injection{p, inject})
	}
	return all
}

// Run keeps a worker going and injects faults until intake ends.
func (s *Slot) Run(ctx, intake context.Context) error {
	return s.Keep(ctx, intake, func() error {
		next, ok := s.deck.Deal()
		if !ok {
			return nil
		}
		before := s.on.copies.restored.Load()
		err := next.inject(s, ctx, intake, next.at)
		if s.on.copies.restored.Load() != before && !harness.Is(err) {
			err = nil // a restored copy may lack what the fault was about
		}
		return err
	})
}

// EnsureRunning waits for the end of a worker whose handler broke the rules, and then for another.
func (s *Slot) EnsureRunning(ctx context.Context) error {
	s.Node.awaitBreach(ctx)
	return s.Place.EnsureRunning(ctx)
}

// inject injects a fault in a batch or, if none comes, without one. It does nothing if intake ends
// first.
func (s *Slot) inject(intake context.Context, at point, fault func()) (injected, inBatch bool) {
	if s.AwaitHit(intake, s.Node.arm(at, fault)) {
		return true, true
	}
	if intake.Err() != nil {
		return false, false
	}
	fault()
	return true, false
}

// whereabouts says where a fault was injected.
func whereabouts(at point, inBatch bool) string {
	if !inBatch {
		return "between batches"
	}
	return at.String()
}
