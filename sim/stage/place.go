package stage

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/harness"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/network"
	"github.com/pgfrontier/worker/sim/server"
)

// process is a worker of any kind, with its machine.
type process interface {
	comparable
	Itself() *Machine
	// Ready waits until the worker runs. It returns false if the worker, or ctx,
	// ended before.
	Ready(ctx context.Context) bool
	// Broke reports whether the worker has ended as a handler broke the rules.
	Broke() bool
	// Stop asks the worker to end.
	Stop()
	// Await waits for the end of the worker that was asked to end.
	Await(asked string) history.Exit
}

// Place is where one worker of a kind runs at a time: whatever becomes of it, another
// takes over.
type Place[P process] struct {
	lives        int
	Dice         *rand.Rand
	On           *server.Database
	Tally        *Tally
	History      *history.History
	Calm, Outage time.Duration                                  // between two faults, and until another worker starts
	Begin        func(ctx context.Context, life int) (P, error) // starts a worker

	Node     P
	retiring sync.WaitGroup // workers that were told to end
	mu       sync.Mutex
	shown    P // the node, for others
	exits    []history.Exit
}

// Keep keeps a worker going and injects faults until intake ends. It leaves a worker
// into which nothing is injected any more.
func (s *Place[P]) Keep(ctx, intake context.Context, inject func() error) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	for s.Pause(intake, s.Calm/2, s.Calm*3/2) {
		if !s.Node.Ready(intake) {
			if err := s.replaceDead(ctx); err != nil {
				return err
			}
			continue
		}
		if err := s.On.Forgive(inject()); err != nil { // another slot's crash may have come between
			return err
		}
	}
	return s.replaceDead(ctx)
}

func (s *Place[P]) Pause(ctx context.Context, low, high time.Duration) bool {
	return backoff.Sleep(ctx, fault.Between(s.Dice, low, high))
}

func (s *Place[P]) start(ctx context.Context) (err error) {
	s.lives++
	if s.Node, err = s.Begin(ctx, s.lives); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown = s.Node
	return nil
}

// Current is the worker that runs here, nil before there is one.
func (s *Place[P]) Current() P {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shown
}

// replaceDead replaces a worker that has ended although nobody asked it to.
func (s *Place[P]) replaceDead(ctx context.Context) error {
	m := s.Node.Itself()
	select {
	case <-m.Done:
	default:
		return nil
	}
	if ctx.Err() != nil {
		return nil
	}
	why := history.ExitItself
	switch {
	case s.Node.Broke():
		why = history.ExitBroke
	case m.ran || m.Err == nil:
	case s.On.Forgive(m.Err) == nil: // there was no server to start on
		why = history.ExitOutage
	case harness.Explain(m.Err) != nil:
		why = history.ExitLost
	case errors.Is(m.Err, context.DeadlineExceeded):
		why = history.ExitSlow
		s.Happened(SlowStarts, "")
	}
	s.retire(ctx, why, 0)
	return s.start(ctx)
}

// EnsureRunning makes sure that a worker runs, after the last outage of the server. A worker that
// began in an outage may have given up.
func (s *Place[P]) EnsureRunning(ctx context.Context) error {
	const often = 3
	for range often {
		if s.Node.Ready(ctx) || ctx.Err() != nil {
			break
		}
		if err := s.replaceDead(ctx); err != nil {
			return err
		}
	}
	return nil
}

// retire records in the background how the worker ends, and then cleans up. The worker's
// connections linger for at least that long.
func (s *Place[P]) retire(ctx context.Context, asked string, linger time.Duration) {
	n, until := s.Node, time.Now().Add(linger)
	s.retiring.Go(func() {
		x := n.Await(asked)
		s.mu.Lock()
		s.exits = append(s.exits, x)
		s.mu.Unlock()
		backoff.Sleep(ctx, time.Until(until))
		n.Itself().cleanUp()
	})
}

// Replace starts another worker some time after the one that was told to end.
func (s *Place[P]) Replace(ctx, intake context.Context, asked string, linger time.Duration) error {
	s.retire(ctx, asked, linger)
	s.Pause(intake, 0, s.Outage)
	return s.start(ctx)
}

// AwaitHit waits for the worker to pass a point, and reports whether it did. If it did not, the
// point injects nothing any more.
func (s *Place[P]) AwaitHit(intake context.Context, p *network.Failpoint) bool {
	const enough = 2 * time.Second
	timer := time.NewTimer(s.On.Bounds.Of(enough))
	defer timer.Stop()
	select {
	case <-p.Hit:
	case <-timer.C:
	case <-intake.Done():
	case <-s.Node.Itself().Done:
	}
	if p.Disarm() {
		return false
	}
	<-p.Hit
	return true
}

// Happened counts and records a fault of this place's worker.
func (s *Place[P]) Happened(f history.Fault, where string) {
	s.Tally.Add(f, 1)
	s.History.Add(s.Node.Itself().Name, "", history.FaultInjected, history.Injection{Fault: f, Where: where})
}

// Crashed counts a crash of this place's worker: in a commit, elsewhere in its work, or idle. It counts
// more, too.
func (s *Place[P]) Crashed(where string, working, inCommit bool, more ...history.Fault) {
	switch {
	case !working:
		s.Happened(history.IdleCrashes, "")
	case inCommit:
		s.Happened(history.CommitCrashes, where)
	default:
		s.Happened(history.Crashes, where)
	}
	for _, f := range more {
		s.Happened(f, "")
	}
}

// Over records that a fault is over.
func (s *Place[P]) Over(f history.Fault) {
	s.History.Add(s.Node.Itself().Name, "", history.FaultOver, history.Injection{Fault: f})
}

// Stop ends the worker cleanly, and waits for all that are on their way out.
func (s *Place[P]) Stop(ctx context.Context) []history.Exit {
	var none P
	if s.Node != none {
		s.Node.Stop()
		s.retire(ctx, history.ExitStopped, 0)
	}
	s.retiring.Wait()
	return s.exits
}
