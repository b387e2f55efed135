package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
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
	mischief      mischief

	deck    []mishap
	node    *node
	current atomic.Pointer[node]

	retiring sync.WaitGroup // nodes that were told to end
	mu       sync.Mutex
	exits    []history.Exit
}

// mishap is what can befall a worker, and when.
type mishap struct {
	name   string // of the kind of fault
	at     point
	befall func(s *slot, ctx, intake context.Context, at point) error
}

// mishaps are dealt like cards: each comes up before any comes again, more
// often the more intense the fault is.
var mishaps = []mishap{
	{"crash", afterGuard, (*slot).crash},
	{"crash", afterEffect, (*slot).crash},
	{"crash", beforeCommit, (*slot).crash},
	{"crash", afterCommit, (*slot).crash},
	{"vanish", afterEffect, (*slot).vanish},
	{"cut", beforeStatement, (*slot).cut},
	{"cut", afterStatement, (*slot).cut},
	{"cut", beforeCommit, (*slot).cut},
	{"cut", afterCommit, (*slot).cut},
	{"slow", afterGuard, (*slot).slow},
	{"stall", afterGuard, (*slot).stall},
	{"stall", afterEffect, (*slot).stall},
	{"hole", afterGuard, (*slot).hole},
	{"hole", afterEffect, (*slot).hole},
	{"restart", afterEffect, (*slot).restart},
	{"kill-batch", afterEffect, terminating(history.EndedBatches, ofABatch)},
	{"kill-lock", afterEffect, terminating(history.EndedLocks, ofTheLocks)},
	{"kill-scan", afterGuard, terminating(history.EndedScanners, ofTheScanner)},
	{"kill-scan", afterEffect, terminating(history.EndedScanners, ofTheScanner)},
	{"kill-listener", afterGuard, terminating(history.EndedListeners, ofTheListener)},
	{"notify-lost", afterGuard, misdelivering(history.LostLetters, losing)},
	{"notify-late", afterGuard, misdelivering(history.LateLetters, keeping)},
	{"unregister", afterGuard, (*slot).unregister},
	{"unassign", afterGuard, (*slot).unassign},
	{"depose", afterGuard, (*slot).depose},
	{"depose", afterGuard, (*slot).depose},
	{"deafen", afterGuard, (*slot).deafen},
	{"server-crash", afterEffect, crashing(history.ServerCrashes, (*database).kill, true)},
	{"server-crash", afterCommit, crashing(history.ServerCrashes, (*database).kill, true)},
	{"backend-crash", afterEffect, crashing(history.BackendCrashes, (*database).killBackend, false)},
	{"restore", afterEffect, (*slot).restore},
	{"restore", afterCommit, (*slot).restore},
	{"standby", afterEffect, misleading(history.Lagging, false)},
	{"standby", afterEffect, misleading(history.Lagging, false)},
	{"split", afterEffect, misleading(history.Splits, true)},
	{"split", afterEffect, misleading(history.Splits, true)},
	{"pause", afterGuard, (*slot).pauseConsumer},
	{"reset", afterGuard, (*slot).setBack},
	{"reset", afterGuard, (*slot).setBack},
	{"forward", afterGuard, (*slot).setForward},
	{"skip", afterGuard, (*slot).skipEvent},
	{"skip", afterGuard, (*slot).skipEvent},
}

func newSlot(number int, s Scenario, on *database, t *tally, h *history.History, m mischief) *slot {
	return &slot{number: number, scenario: s, on: on, tally: t, history: h, mischief: m, dice: dice(s.Seed, fmt.Sprintf("slot %d", number))}
}

// run keeps a worker going and lets mishaps befall it until intake ends. It
// leaves a worker that nothing befalls any more.
func (s *slot) run(ctx, intake context.Context) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	for s.pause(intake, s.scenario.Knobs.Calm/2, s.scenario.Knobs.Calm*3/2) {
		if !s.node.ready(intake) {
			if err := s.mourn(ctx); err != nil {
				return err
			}
			continue
		}
		m, ok := s.deal()
		if !ok {
			continue
		}
		before := s.on.restored.Load()
		err := m.befall(s, ctx, intake, m.at)
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
	return s.mourn(ctx)
}

// deal draws the next mishap. There is none if the dice want none for now.
func (s *slot) deal() (m mishap, ok bool) {
	if len(s.deck) == 0 {
		for _, m := range mishaps {
			whole, part := math.Modf(s.scenario.Faults[m.name])
			if chance(s.dice, part) {
				whole++
			}
			s.deck = append(s.deck, slices.Repeat([]mishap{m}, int(whole))...)
		}
		s.dice.Shuffle(len(s.deck), func(i, j int) { s.deck[i], s.deck[j] = s.deck[j], s.deck[i] })
	}
	if len(s.deck) == 0 {
		return m, false
	}
	m, s.deck = s.deck[0], s.deck[1:]
	return m, true
}

func (s *slot) pause(ctx context.Context, low, high time.Duration) bool {
	return backoff.Sleep(ctx, between(s.dice, low, high))
}

func (s *slot) start(ctx context.Context) (err error) {
	s.lives++
	if s.node, err = startNode(ctx, s.scenario, s.on, s.history, s.number, s.lives, s.mischief); err != nil {
		return err
	}
	s.current.Store(s.node)
	if s.scenario.Faults["async-workers"] > 0 {
		s.tally.add(history.AsyncWorkers, 1)
	}
	return nil
}

// mourn replaces a worker that has ended although nobody asked it to.
func (s *slot) mourn(ctx context.Context) error {
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
		s.happened(history.SlowStarts, "")
	}
	s.retire(ctx, why, 0)
	return s.start(ctx)
}

// revive sees to it that a worker runs, now that the server is there to stay:
// one that began in an outage may have given up.
func (s *slot) revive(ctx context.Context) error {
	const often = 3
	for range often {
		s.node.awaitBreach(ctx)
		if s.node.ready(ctx) || ctx.Err() != nil {
			break
		}
		if err := s.mourn(ctx); err != nil {
			return err
		}
	}
	return nil
}

// retire takes down, in the background, how the worker ends, and frees what it
// leaves when that is known and haunt is over.
func (s *slot) retire(ctx context.Context, asked string, haunt time.Duration) {
	n, asleep := s.node, time.Now().Add(haunt)
	s.retiring.Go(func() {
		x := n.await(asked)
		s.mu.Lock()
		s.exits = append(s.exits, x)
		s.mu.Unlock()
		backoff.Sleep(ctx, time.Until(asleep))
		n.bury()
	})
}

// replace starts another worker some time after the one that was told to end.
func (s *slot) replace(ctx, intake context.Context, asked string, haunt time.Duration) error {
	s.retire(ctx, asked, haunt)
	s.pause(intake, 0, s.scenario.Knobs.Outage)
	return s.start(ctx)
}

// strike lets a fault strike in a batch, or at last without one. It does
// nothing if intake ends first.
func (s *slot) strike(intake context.Context, at point, fault func()) (struck, inBatch bool) {
	const enough = 2 * time.Second
	t := s.node.set(at, fault)
	timer := time.NewTimer(enough)
	defer timer.Stop()
	select {
	case <-t.sprung:
	case <-timer.C:
	case <-intake.Done():
	case <-s.node.done:
	}
	if !t.disarm() {
		<-t.sprung
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

// whereabouts says where a fault struck.
func whereabouts(at point, inBatch bool) string {
	if !inBatch {
		return "between batches"
	}
	return at.String()
}

// crash ends the process at once: no goodbye.
func (s *slot) crash(ctx, intake context.Context, at point) error {
	n, crashed := s.node, false
	_, inBatch := s.strike(intake, at, func() {
		if crashed = n.fate.CompareAndSwap(0, toCrash); crashed {
			n.net.crash()
			n.cancel()
		}
	})
	if !crashed {
		return nil
	}
	s.countCrash(at, inBatch)
	return s.replace(ctx, intake, history.ExitCrashed, 0)
}

func (s *slot) countCrash(at point, inBatch bool) {
	switch {
	case !inBatch:
		s.happened(history.IdleCrashes, "")
	case at == beforeCommit || at == afterCommit:
		s.happened(history.CommitCrashes, at.String())
	default:
		s.happened(history.Crashes, at.String())
	}
}

// haunting is how long the connections of a machine that vanished stay.
const haunting = 4 * time.Second

// vanish takes the whole machine away: the server does not even see the
// connections end.
func (s *slot) vanish(ctx, intake context.Context, at point) error {
	n, crashed := s.node, false
	_, inBatch := s.strike(intake, at, func() {
		if crashed = n.fate.CompareAndSwap(0, toCrash); crashed {
			n.net.vanish()
			n.cancel()
		}
	})
	if !crashed {
		return nil
	}
	s.countCrash(at, inBatch)
	s.happened(history.Vanished, "")
	return s.replace(ctx, intake, history.ExitCrashed, haunting)
}

// cut resets the worker's connections. It is to recover by itself.
func (s *slot) cut(_, intake context.Context, at point) error {
	if struck, inBatch := s.strike(intake, at, s.node.net.cut); struck {
		s.happened(history.Cuts, whereabouts(at, inBatch))
	}
	return nil
}

// slow takes the server far away for a while.
func (s *slot) slow(_, intake context.Context, _ point) error {
	const nearest, furthest = 4 * time.Millisecond, 80 * time.Millisecond
	far := nearest + time.Duration(s.dice.Int64N(int64(furthest-nearest)))
	s.node.net.remove(far)
	s.happened(history.Slowed, fmt.Sprintf("answers take %v", far.Round(time.Millisecond)))
	s.pause(intake, 500*time.Millisecond, 1500*time.Millisecond)
	s.node.net.remove(0)
	s.history.Add(s.node.name, "", history.FaultOver, history.Injection{Fault: history.Slowed})
	return nil
}

// stall makes the worker a zombie: others take it for dead, and it goes on
// where it was.
func (s *slot) stall(_, intake context.Context, at point) error {
	struck, inBatch := s.strike(intake, at, s.node.net.stall)
	if !struck {
		return nil
	}
	s.happened(history.Stalls, whereabouts(at, inBatch))
	s.pause(intake, 200*time.Millisecond, s.scenario.Knobs.HeartbeatTimeout*8/5)
	s.node.net.release()
	s.history.Add(s.node.name, "", history.FaultOver, history.Injection{Fault: history.Stalls})
	return nil
}

// hole makes half of the worker's connections die in silence. It is to find out
// by itself.
func (s *slot) hole(_, intake context.Context, at point) error {
	swallowed := 0
	if _, inBatch := s.strike(intake, at, func() { swallowed = s.node.net.swallow() }); swallowed > 0 {
		s.tally.add(history.Swallowed, swallowed)
		s.history.Add(s.node.name, "", history.FaultInjected, history.Injection{Fault: history.Swallowed, Where: fmt.Sprintf("%d of them, %s", swallowed, whereabouts(at, inBatch))})
	}
	return nil
}

// restart is a deployment: a clean stop, and another worker.
func (s *slot) restart(ctx, intake context.Context, _ point) error {
	s.node.worker.Stop()
	s.happened(history.Restarts, "")
	return s.replace(ctx, intake, history.ExitStopped, 0)
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
