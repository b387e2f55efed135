package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/sim/harness"
	"github.com/pgfrontier/worker/sim/history"
)

// process is a worker of any kind, with its machine.
type process interface {
	comparable
	itself() *machine
	// ready waits until the worker runs. It returns false if the worker, or ctx,
	// ended before.
	ready(ctx context.Context) bool
	// broke reports whether the worker has ended as a handler broke the rules.
	broke() bool
	// stop asks the worker to end.
	stop()
	// await waits for the end of the worker that was asked to end.
	await(asked string) history.Exit
}

// place is where one worker of a kind runs at a time: whatever becomes of it, another
// takes over.
type place[P process] struct {
	number, lives int
	dice          *rand.Rand
	on            *database
	tally         *tally
	history       *history.History
	calm, outage  time.Duration                                  // between two faults, and until another worker starts
	begin         func(ctx context.Context, life int) (P, error) // starts a worker

	node     P
	retiring sync.WaitGroup // workers that were told to end
	mu       sync.Mutex
	shown    P // the node, for others
	exits    []history.Exit
}

// keep keeps a worker going and injects faults until intake ends. It leaves a worker
// into which nothing is injected any more.
func (s *place[P]) keep(ctx, intake context.Context, inject func() error) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	for s.pause(intake, s.calm/2, s.calm*3/2) {
		if !s.node.ready(intake) {
			if err := s.replaceDead(ctx); err != nil {
				return err
			}
			continue
		}
		before := s.on.restored.Load()
		err := inject()
		if s.on.restored.Load() != before && !harness.Is(err) {
			err = nil // what it worked on may be another
		}
		if err = s.on.forgive(err); err != nil { // another slot's crash may have come between
			return err
		}
	}
	return s.replaceDead(ctx)
}

func (s *place[P]) pause(ctx context.Context, low, high time.Duration) bool {
	return backoff.Sleep(ctx, between(s.dice, low, high))
}

func (s *place[P]) start(ctx context.Context) (err error) {
	s.lives++
	if s.node, err = s.begin(ctx, s.lives); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown = s.node
	return nil
}

// current is the worker that runs here, nil before there is one.
func (s *place[P]) current() P {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shown
}

// replaceDead replaces a worker that has ended although nobody asked it to.
func (s *place[P]) replaceDead(ctx context.Context) error {
	m := s.node.itself()
	select {
	case <-m.done:
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
	case m.ran || m.err == nil:
	case s.on.forgive(m.err) == nil: // there was no server to start on
		why = history.ExitOutage
	case harness.Explain(m.err) != nil:
		why = history.ExitLost
	case errors.Is(m.err, context.DeadlineExceeded):
		why = history.ExitSlow
		s.happened(slowStarts, "")
	}
	s.retire(ctx, why, 0)
	return s.start(ctx)
}

// ensureRunning sees to it that a worker runs, now that the server is there to
// stay: one that began in an outage may have given up.
func (s *place[P]) ensureRunning(ctx context.Context) error {
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
func (s *place[P]) retire(ctx context.Context, asked string, linger time.Duration) {
	n, until := s.node, time.Now().Add(linger)
	s.retiring.Go(func() {
		x := n.await(asked)
		s.mu.Lock()
		s.exits = append(s.exits, x)
		s.mu.Unlock()
		backoff.Sleep(ctx, time.Until(until))
		n.itself().cleanUp()
	})
}

// replace starts another worker some time after the one that was told to end.
func (s *place[P]) replace(ctx, intake context.Context, asked string, linger time.Duration) error {
	s.retire(ctx, asked, linger)
	s.pause(intake, 0, s.outage)
	return s.start(ctx)
}

// awaitHit waits for the worker to pass a point, and reports whether it did. Else
// nothing is injected there any more.
func (s *place[P]) awaitHit(intake context.Context, p *failpoint) bool {
	const enough = 2 * time.Second
	timer := time.NewTimer(s.on.bounds.Of(enough))
	defer timer.Stop()
	select {
	case <-p.hit:
	case <-timer.C:
	case <-intake.Done():
	case <-s.node.itself().done:
	}
	if p.disarm() {
		return false
	}
	<-p.hit
	return true
}

// happened counts a fault of this place's worker, and writes it down.
func (s *place[P]) happened(f history.Fault, where string) {
	s.tally.add(f, 1)
	s.history.Add(s.node.itself().name, "", history.FaultInjected, history.Injection{Fault: f, Where: where})
}

// over writes down that a fault is over.
func (s *place[P]) over(f history.Fault) {
	s.history.Add(s.node.itself().name, "", history.FaultOver, history.Injection{Fault: f})
}

// stop ends the worker cleanly, and waits for all that are on their way out.
func (s *place[P]) stop(ctx context.Context) []history.Exit {
	var none P
	if s.node != none {
		s.node.stop()
		s.retire(ctx, history.ExitStopped, 0)
	}
	s.retiring.Wait()
	return s.exits
}
