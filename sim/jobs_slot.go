package sim

import (
	"context"
	"fmt"

	"github.com/pgfrontier/worker/sim/fault"
)

// jobSlot is a place for a worker of jobs.
type jobSlot struct {
	place[*jobNode]
	of   *jobSimulation
	deck *fault.Deck[jobInjection]
}

func newJobSlot(number int, of *jobSimulation) *jobSlot {
	s := of.scenario
	dice := fault.Dice(s.Seed, fmt.Sprintf("slot %d", number))
	return &jobSlot{
		place: place[*jobNode]{
			number: number, dice: dice, on: of.on, tally: &of.tally, history: of.history, calm: s.Jobs.Calm, outage: s.Jobs.Outage,
			begin: func(ctx context.Context, life int) (*jobNode, error) { return of.startNode(ctx, number, life) },
		},
		of: of, deck: fault.NewDeck(dice, jobInjections(s.Faults)),
	}
}

// run keeps a worker going and injects faults until intake ends.
func (s *jobSlot) run(ctx, intake context.Context) error {
	return s.keep(ctx, intake, func() error {
		next, ok := s.deck.Deal()
		if !ok {
			return nil
		}
		return next.inject(s, ctx, intake, next.at)
	})
}

// inject injects a fault at a point, or at last without one. It does nothing if
// intake ends first.
func (s *jobSlot) inject(intake context.Context, at jobPoint, do func()) (injected, there bool) {
	p := &failpoint{inject: do, hit: make(chan struct{})}
	if at.sends == nil {
		s.node.armed.Store(p)
	} else {
		s.node.net.trap.Store(&trap{at.sends, at.sends, at.answered, p.fire})
	}
	if s.awaitHit(intake, p) {
		return true, true
	}
	s.node.net.trap.Store(nil)
	if intake.Err() != nil {
		return false, false
	}
	do()
	return true, false
}
