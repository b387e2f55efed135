package runtime

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/observe"
)

// Life is the life of a worker. The worker starts once, takes in work until a stop, finishes the
// work in flight, and ends. A Life must not be copied after Start.
type Life struct {
	Stop

	Package  string                // the prefix of errors
	Goexit   error                 // the error of a goroutine that runtime.Goexit has ended
	Again    error                 // the error of a second Start
	Stopping error                 // the cause with which Handling ends
	Most     time.Duration         // the time after which the worker stops itself; 0: no limit
	DrainFor time.Duration         // bounds the work in flight after a stop; 0: no bound
	Grace    func() time.Duration  // bounds the goroutines after all contexts have ended
	Entered  func(s observe.State) // records a new state; StateStopped is recorded once, however Start ends
	Late     func(p *Phases)       // ends the work in flight after DrainFor; nil: p.Abandon(Stopping)

	started atomic.Bool
}

// Phases are the contexts of a Life, in the order in which they end, and its goroutines.
type Phases struct {
	Intake   context.Context // no new work begins after its end
	Handling context.Context // the context of the program's handlers
	Running  context.Context // the context of all other goroutines
	Beyond   context.Context // never ends, for the last statements

	Drain      context.CancelFunc      // ends Intake
	Abandon    context.CancelCauseFunc // ends Handling
	Halt       context.CancelFunc      // ends Running
	Background *Group                  // the first that fails ends Intake
}

// Start runs the worker until ctx ends, Ask or Drain is called, or begin, run or a goroutine fails.
// begin makes the worker ready. run runs the worker, and returns when the work in flight has ended.
// leave is called last, with the error that Start returns, also if begin has failed.
//
// After Drain, Start waits until ctx ends or Ask is called. A supervisor would restart a process that
// ended.
func (l *Life) Start(ctx context.Context, begin, run func(p *Phases) error, leave func(p *Phases, err error)) error {
	if !l.started.CompareAndSwap(false, true) {
		return l.Again
	}
	defer l.Entered(observe.StateStopped)
	err := l.live(ctx, begin, run, leave)
	if err == nil && l.Drained() {
		l.Entered(observe.StateDrained)
		l.Hold(ctx)
	}
	return err
}

// live is Start without the wait after Drain. No goroutine of the worker runs when it returns.
func (l *Life) live(ctx context.Context, begin, run func(p *Phases) error, leave func(p *Phases, err error)) error {
	l.Entered(observe.StateStarting)
	p := &Phases{Beyond: context.WithoutCancel(ctx)}
	p.Intake, p.Drain = context.WithCancel(p.Beyond)
	defer p.Drain()
	defer context.AfterFunc(ctx, p.Drain)()
	l.Bind(p.Drain)
	if l.Most > 0 {
		defer time.AfterFunc(l.Most, p.Drain).Stop()
	}
	p.Handling, p.Abandon = context.WithCancelCause(p.Beyond)
	defer p.Abandon(l.Stopping)
	p.Running, p.Halt = context.WithCancel(p.Beyond)
	defer p.Halt()
	p.Background = &Group{Of: l.Package, Fail: p.Drain, Goexit: l.Goexit}

	err := errtext.Of(begin(p))
	switch {
	case err == nil:
		l.Entered(observe.StateRunning)
		p.Background.Run(func() error { l.drain(p); return nil })
		err = run(p)
	case p.Intake.Err() != nil:
		err = nil // asked to stop before it began
	}
	p.Drain()
	p.Halt()
	err = errtext.Join(err, p.Background.Wait(l.Grace()))
	leave(p, err)
	return err
}

// drain records that the worker drains, and bounds for how long.
func (l *Life) drain(p *Phases) {
	select {
	case <-p.Intake.Done():
		l.Entered(observe.StateDraining)
	case <-p.Running.Done():
		return
	}
	switch {
	case l.DrainFor <= 0 || !backoff.Sleep(p.Running, l.DrainFor):
	case l.Late != nil:
		l.Late(p)
	default:
		p.Abandon(l.Stopping)
	}
}
