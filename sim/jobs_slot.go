package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
)

// jobSlot is a place for a worker of jobs: whatever becomes of one, another takes
// over.
type jobSlot struct {
	number, lives int
	dice          *rand.Rand
	of            *jobSimulation

	deck    *fault.Deck[jobInjection]
	node    *jobNode
	current atomic.Pointer[jobNode]

	retiring sync.WaitGroup // nodes that were told to end
	mu       sync.Mutex
	exits    []history.Exit
}

func newJobSlot(number int, of *jobSimulation) *jobSlot {
	dice := fault.Dice(of.scenario.Seed, fmt.Sprintf("slot %d", number))
	return &jobSlot{number: number, of: of, dice: dice, deck: fault.NewDeck(dice, jobInjections(of.scenario.Faults))}
}

// run keeps a worker going and injects faults until intake ends. It leaves a worker
// into which nothing is injected any more.
func (s *jobSlot) run(ctx, intake context.Context) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	calm := s.of.scenario.Jobs.Calm
	for s.pause(intake, calm/2, calm*3/2) {
		if !s.node.ready(intake) {
			if err := s.replaceDead(ctx); err != nil {
				return err
			}
			continue
		}
		next, ok := s.deck.Deal()
		if !ok {
			continue
		}
		err := next.inject(s, ctx, intake, next.at)
		if !errors.Is(err, errNotRecovered) {
			err = s.of.on.forgive(err) // another slot's crash may have come between
		}
		if err != nil {
			return err
		}
	}
	return s.replaceDead(ctx)
}

func (s *jobSlot) pause(ctx context.Context, low, high time.Duration) bool {
	return backoff.Sleep(ctx, between(s.dice, low, high))
}

func (s *jobSlot) start(ctx context.Context) (err error) {
	s.lives++
	if s.node, err = startJobNode(ctx, s.of.scenario, s.of.on, s.of.history, s.of.book, s.number, s.lives); err != nil {
		return err
	}
	s.current.Store(s.node)
	if ends(s.of.on.life()) {
		s.of.book.fault(s.node.name)
	}
	if s.of.scenario.Faults[asyncWorkersOn] > 0 {
		s.of.tally.add(asyncWorkers, 1)
	}
	return nil
}

// replaceDead replaces a worker that has ended although nobody asked it to.
func (s *jobSlot) replaceDead(ctx context.Context) error {
	select {
	case <-s.node.done:
	default:
		return nil
	}
	if ctx.Err() != nil {
		return nil
	}
	why := history.ExitItself
	switch {
	case s.node.ran || s.node.err == nil:
	case s.of.on.forgive(s.node.err) == nil:
		why = history.ExitOutage
	case errors.Is(s.node.err, context.DeadlineExceeded):
		why = history.ExitSlow
		s.happened(slowStarts, "")
	}
	s.retire(ctx, why, 0)
	return s.start(ctx)
}

// ensureRunning sees to it that a worker runs, now that the server is there to stay.
func (s *jobSlot) ensureRunning(ctx context.Context) error {
	const often = 3
	for range often {
		if s.node.ready(ctx) || ctx.Err() != nil {
			break
		}
		if err := s.replaceDead(ctx); err != nil {
			return err
		}
	}
	return nil
}

// retire takes down, in the background, how the worker ends, and cleans up when that
// is known. Its connections linger for at least that long.
func (s *jobSlot) retire(ctx context.Context, asked string, linger time.Duration) {
	n, until := s.node, time.Now().Add(linger)
	s.retiring.Go(func() {
		x := n.await(asked)
		s.mu.Lock()
		s.exits = append(s.exits, x)
		s.mu.Unlock()
		backoff.Sleep(ctx, time.Until(until))
		n.cleanUp()
	})
}

// replace starts another worker some time after the one that was told to end.
func (s *jobSlot) replace(ctx, intake context.Context, asked string, linger time.Duration) error {
	s.retire(ctx, asked, linger)
	s.pause(intake, 0, s.of.scenario.Jobs.Outage)
	return s.start(ctx)
}

// inject injects a fault at a point, or at last without one. It does nothing if
// intake ends first.
func (s *jobSlot) inject(intake context.Context, at jobPoint, do func()) (injected, there bool) {
	const enough = 2 * time.Second
	p := &failpoint{inject: do, hit: make(chan struct{})}
	if at.sends == nil {
		s.node.armed.Store(p)
	} else {
		s.node.net.trap.Store(&trap{at.sends, at.answered, p.fire})
	}
	timer := time.NewTimer(enough)
	defer timer.Stop()
	select {
	case <-p.hit:
	case <-timer.C:
	case <-intake.Done():
	case <-s.node.done:
	}
	if !p.disarm() {
		<-p.hit
		return true, true
	}
	s.node.net.trap.Store(nil)
	if intake.Err() != nil {
		return false, false
	}
	do()
	return true, false
}

// happened counts a fault of this slot's worker, and writes it down.
func (s *jobSlot) happened(f history.Fault, where string) {
	s.of.tally.add(f, 1)
	s.of.history.Add(s.node.name, "", history.FaultInjected, history.Injection{Fault: f, Where: where})
}

// over writes down that a fault is over.
func (s *jobSlot) over(f history.Fault) {
	s.of.history.Add(s.node.name, "", history.FaultOver, history.Injection{Fault: f})
}

// stop ends the worker cleanly, and waits for all that are on their way out.
func (s *jobSlot) stop(ctx context.Context) []history.Exit {
	if s.node != nil {
		s.node.worker.Stop()
		s.retire(ctx, history.ExitStopped, 0)
	}
	s.retiring.Wait()
	return s.exits
}
