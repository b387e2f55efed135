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

// slot is a place for a worker: whatever becomes of one, another takes over.
type slot struct {
	number, lives int
	dice          *rand.Rand
	scenario      Scenario
	on            *database
	tally         *tally
	history       *history.History
	injector      injector

	deck    *fault.Deck[injection]
	node    *node
	current atomic.Pointer[node]

	retiring sync.WaitGroup // nodes that were told to end
	mu       sync.Mutex
	exits    []history.Exit
}

func newSlot(number int, s Scenario, on *database, t *tally, h *history.History, i injector) *slot {
	dice := fault.Dice(s.Seed, fmt.Sprintf("slot %d", number))
	return &slot{number: number, scenario: s, on: on, tally: t, history: h, injector: i, dice: dice, deck: fault.NewDeck(dice, injections(s.Faults))}
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

// run keeps a worker going and injects faults until intake ends. It leaves a
// worker into which nothing is injected any more.
func (s *slot) run(ctx, intake context.Context) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	for s.pause(intake, s.scenario.Knobs.Calm/2, s.scenario.Knobs.Calm*3/2) {
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
		before := s.on.restored.Load()
		err := next.inject(s, ctx, intake, next.at)
		if s.on.restored.Load() != before && !errors.Is(err, errNotRecovered) {
			err = nil // what it worked on may be another
		}
		if !errors.Is(err, errNotRecovered) {
			err = s.on.forgive(err) // another slot's crash may have come between
		}
		if err != nil {
			return err
		}
	}
	return s.replaceDead(ctx)
}

func (s *slot) pause(ctx context.Context, low, high time.Duration) bool {
	return backoff.Sleep(ctx, between(s.dice, low, high))
}

func (s *slot) start(ctx context.Context) (err error) {
	s.lives++
	if s.node, err = startNode(ctx, s.scenario, s.on, s.history, s.number, s.lives, s.injector); err != nil {
		return err
	}
	s.current.Store(s.node)
	if s.scenario.Faults[asyncWorkersOn] > 0 {
		s.tally.add(asyncWorkers, 1)
	}
	return nil
}

// replaceDead replaces a worker that has ended although nobody asked it to.
func (s *slot) replaceDead(ctx context.Context) error {
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
	case s.node.broke():
		why = history.ExitBroke
	case s.node.ran || s.node.err == nil:
	case s.on.forgive(s.node.err) == nil:
		why = history.ExitOutage
	case errors.Is(s.node.err, context.DeadlineExceeded):
		why = history.ExitSlow
		s.happened(slowStarts, "")
	}
	s.retire(ctx, why, 0)
	return s.start(ctx)
}

// ensureRunning sees to it that a worker runs, now that the server is there to
// stay: one that began in an outage may have given up.
func (s *slot) ensureRunning(ctx context.Context) error {
	const often = 3
	for range often {
		s.node.awaitBreach(ctx)
		if s.node.ready(ctx) || ctx.Err() != nil {
			break
		}
		if err := s.replaceDead(ctx); err != nil {
			return err
		}
	}
	return nil
}

// retire takes down, in the background, how the worker ends, and cleans up when
// that is known. Its connections linger for at least that long.
func (s *slot) retire(ctx context.Context, asked string, linger time.Duration) {
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
func (s *slot) replace(ctx, intake context.Context, asked string, linger time.Duration) error {
	s.retire(ctx, asked, linger)
	s.pause(intake, 0, s.scenario.Knobs.Outage)
	return s.start(ctx)
}

// inject injects a fault in a batch, or at last without one. It does nothing if
// intake ends first.
func (s *slot) inject(intake context.Context, at point, fault func()) (injected, inBatch bool) {
	const enough = 2 * time.Second
	p := s.node.arm(at, fault)
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
	if intake.Err() != nil {
		return false, false
	}
	fault()
	return true, false
}

// happened counts a fault of this slot's worker, and writes it down.
func (s *slot) happened(f history.Fault, where string) {
	s.tally.add(f, 1)
	s.history.Add(s.node.name, "", history.FaultInjected, history.Injection{Fault: f, Where: where})
}

// whereabouts says where a fault was injected.
func whereabouts(at point, inBatch bool) string {
	if !inBatch {
		return "between batches"
	}
	return at.String()
}

// stop ends the worker cleanly, and waits for all that are on their way out.
func (s *slot) stop(ctx context.Context) []history.Exit {
	if s.node != nil {
		s.node.worker.Stop()
		s.retire(ctx, history.ExitStopped, 0)
	}
	s.retiring.Wait()
	return s.exits
}
