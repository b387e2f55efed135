package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/pgfrontier/worker/sim/history"
)

// mischief is what the simulation does to a consumer while it works.
type mischief interface {
	// flap moves it away from its worker, and reports whether it did.
	flap(ctx context.Context, r *rand.Rand, consumer, who string) bool
	// fail is the handler's error, if it is to have one. It may panic.
	fail(r *rand.Rand, consumer, who string) error
	// refuse is the handler's error for an event that does not come first in
	// its batch.
	refuse(consumer, who string, position int64) error
	// breaks reports whether a handler is to break the rules at this event.
	breaks(r *rand.Rand) bool
	count(history.Fault)
	breached(history.Breach)
}

// flap moves a consumer to another worker, as a second leader or a careless
// operator would. The leader will move it back.
func (s *simulation) flap(ctx context.Context, r *rand.Rand, consumer, who string) bool {
	if s.over() {
		return false
	}
	var others []*node
	for _, slot := range s.slots {
		if n := slot.current.Load(); n != nil && n.name != who {
			others = append(others, n)
		}
	}
	if len(others) == 0 {
		return false
	}
	to := others[r.IntN(len(others))]
	_, err := s.on.db.ExecContext(ctx, `UPDATE consumer_assignments SET worker_id = $2::uuid, updated_at = clock_timestamp() WHERE consumer_name = $1::text`, consumer, to.id())
	if err != nil {
		return false // the batch's time is over
	}
	s.tally.add(history.Flaps, 1)
	s.history.Add(who, consumer, history.FaultInjected, history.Injection{Fault: history.Flaps, Where: "to " + to.name})
	return true
}

// fail lets a few of the handlers fail or panic.
func (s *simulation) fail(r *rand.Rand, consumer, who string) error {
	const often = 0.03 // of the batches
	broken, panics := often*s.scenario.Faults["error"], often*s.scenario.Faults["panic"]
	u := r.Float64()
	if s.over() {
		return nil
	}
	switch {
	case u < broken:
		s.tally.add(history.HandlerErrors, 1)
		s.history.Add(who, consumer, history.FaultInjected, history.Injection{Fault: history.HandlerErrors})
		return errors.New("the simulation lets this handler fail")
	case u < broken+panics:
		s.tally.add(history.HandlerPanics, 1)
		s.history.Add(who, consumer, history.FaultInjected, history.Injection{Fault: history.HandlerPanics})
		panic("the simulation lets this handler panic")
	}
	return nil
}

// refuse lets handlers fail at some events as long as these do not come first
// in their batch, also when the faults are over: it is for the worker to try
// them alone.
func (s *simulation) refuse(consumer, who string, position int64) error {
	const often = 0.01 // of the events
	if !chance(dice(s.scenario.Seed, fmt.Sprintf("%s refuses %d", consumer, position)), often*s.scenario.Faults["picky"]) {
		return nil
	}
	s.tally.add(history.PickyHandlers, 1)
	s.history.Add(who, consumer, history.FaultInjected, history.Injection{Fault: history.PickyHandlers, Where: fmt.Sprintf("at position %d", position)})
	return errors.New("the simulation lets this handler refuse an event that does not come first")
}

// breaks lets a few of the handlers break the rules.
func (s *simulation) breaks(r *rand.Rand) bool {
	const often = 0.002 // of the events
	return !s.over() && chance(r, often*s.scenario.Faults["contract"])
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
