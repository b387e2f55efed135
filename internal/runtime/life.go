package runtime

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/observe"
)

// Life is the life of a worker. It starts once, takes in work until it is asked to stop, finishes
// the work in flight, and ends. The zero value of a field is its default.
type Life struct {
	Stop

	Package  string                // with which errors begin
	Goexit   error                 // the error of a goroutine that runtime.Goexit has ended
	Again    error                 // the error of a second Start
	Stopping error                 // the cause with which the contexts of handlers end in the end
	Most     time.Duration         // the worker stops by itself after it; 0: never
	DrainFor time.Duration         // for the work in flight after a stop; 0: as long as it takes
	Grace    func() time.Duration  // for the goroutines after all contexts have ended
	Entered  func(s observe.State) // records the state
	Late     func(p *Phases)       // ends the work in flight: DrainFor is over; nil: p.Abandon(Stopping)

	started atomic.Bool
}

// Phases are the contexts of a life, in the order in which they end, and its goroutines.
type Phases struct {
	Intake   context.Context // no new work begins after it
	Handling context.Context // of the program's handlers
	Running  context.Context // of everything else
	Beyond   context.Context // never ends: for the last statements

	Drain      context.CancelFunc      // ends Intake
	Abandon    context.CancelCauseFunc // ends Handling
	Halt       context.CancelFunc      // ends Running
	Background *Group                  // the first that fails ends Intake
}

// Start runs the worker until ctx ends, a stop is asked for, or something fails. begin makes the
// worker ready. run runs it, and returns when the work in flight has ended. leave is called last,
// also if begin has failed, with the error that Start returns.
//
// After a drain, Start waits for ctx to end or Ask: a process that ended would be started again.
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

// live is Start, up to where nothing of the worker runs any more.
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
