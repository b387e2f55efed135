package sim

import (
	"context"
	"fmt"

	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
)

// slot is a place for a worker of consumers.
type slot struct {
	place[*node]
	scenario Scenario
	deck     *fault.Deck[injection]
}

func newSlot(number int, s Scenario, on *database, t *tally, h *history.History, i injector) *slot {
	dice, b := fault.Dice(s.Seed, fmt.Sprintf("slot %d", number)), buildsOf(s.Faults)
	return &slot{
		place: place[*node]{
			number: number, dice: dice, on: on, tally: t, history: h, calm: s.Knobs.Calm, outage: s.Knobs.Outage,
			begin: func(ctx context.Context, life int) (*node, error) {
				if s.Faults[asyncWorkersOn] > 0 {
					t.add(asyncWorkers, 1)
				}
				return startNode(ctx, b.of(s, number, life, t), on, h, number, life, i)
			},
		},
		scenario: s, deck: fault.NewDeck(dice, injections(s.Faults)),
	}
}

// injections are those of all faults, as often as the faults are intense.
func injections(on Intensities) (all []fault.Card[injection]) {
	for _, f := range faultRows {
		for _, i := range f.worker {
			all = append(all, fault.Card[injection]{What: i, Times: on[f.Name]})
		}
	}
	return all
}

// buildsOf are those of all faults.
func buildsOf(on Intensities) (all builds) {
	for _, f := range faultRows {
		all = all.with(f.Row, f.build, on)
	}
	return all
}

// run keeps a worker going and injects faults until intake ends.
func (s *slot) run(ctx, intake context.Context) error {
	return s.keep(ctx, intake, func() error {
		next, ok := s.deck.Deal()
		if !ok {
			return nil
		}
		return next.inject(s, ctx, intake, next.at)
	})
}

// ensureRunning is that of the place, after a handler that has broken the rules.
func (s *slot) ensureRunning(ctx context.Context) error {
	s.node.awaitBreach(ctx)
	return s.place.ensureRunning(ctx)
}

// inject injects a fault in a batch, or at last without one. It does nothing if
// intake ends first.
func (s *slot) inject(intake context.Context, at point, fault func()) (injected, inBatch bool) {
	if s.awaitHit(intake, s.node.arm(at, fault)) {
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
