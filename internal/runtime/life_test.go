package runtime_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/observe"
)

var errAgain, errStopping = errors.New("again"), errors.New("stopping")

// diary is a Life that records its states.
type diary struct {
	runtime.Life
	mu     sync.Mutex
	states []observe.State
}

func newDiary() *diary {
	d := &diary{}
	d.Life = runtime.Life{
		Package: "test", Goexit: errGoexit, Again: errAgain, Stopping: errStopping,
		Grace: func() time.Duration { return time.Minute },
		Entered: func(s observe.State) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.states = append(d.states, s)
		},
	}
	return d
}

func begun(*runtime.Phases) error { return nil }

func untilIntakeEnds(p *runtime.Phases) error {
	<-p.Intake.Done()
	return nil
}

func TestLifeEndsAsItWasAskedTo(t *testing.T) {
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	for name, c := range map[string]struct {
		ctx    context.Context
		change func(d *diary)
		begin  func(*runtime.Phases) error
		run    func(*runtime.Phases) error
		want   error
	}{
		"stopped before":       {nil, func(d *diary) { d.Ask() }, begun, untilIntakeEnds, nil},
		"context ended before": {canceled, func(*diary) {}, func(p *runtime.Phases) error { <-p.Intake.Done(); return p.Intake.Err() }, nil, nil},
		"begin fails":          {nil, func(*diary) {}, func(*runtime.Phases) error { return errFirst }, nil, errFirst},
		"run fails":            {nil, func(*diary) {}, begun, func(*runtime.Phases) error { return errFirst }, errFirst},
		"a goroutine fails": {nil, func(*diary) {}, begun, func(p *runtime.Phases) error {
			p.Background.Run(func() error { return errFirst })
			return untilIntakeEnds(p)
		}, errFirst},
		"most time is over":         {nil, func(d *diary) { d.Most = time.Nanosecond }, begun, untilIntakeEnds, nil},
		"handlers end after a stop": {nil, func(d *diary) { d.DrainFor = time.Nanosecond; d.Ask() }, begun, func(p *runtime.Phases) error { <-p.Handling.Done(); return context.Cause(p.Handling) }, errStopping},
		"late is called in place": {nil, func(d *diary) {
			d.DrainFor, d.Late = time.Nanosecond, func(p *runtime.Phases) { p.Halt() }
			d.Ask()
		}, begun, func(p *runtime.Phases) error { <-p.Running.Done(); return nil }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDiary()
			c.change(d)
			if c.ctx == nil {
				c.ctx = t.Context()
			}
			left := errors.New("leave was not called")
			err := d.Start(c.ctx, c.begin, c.run, func(p *runtime.Phases, err error) {
				if left = err; p.Beyond.Err() != nil || p.Intake.Err() == nil || p.Running.Err() == nil {
					left = errors.New("leave was called at the wrong time")
				}
			})
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || !errors.Is(left, c.want) || (left == nil) != (c.want == nil) {
				t.Errorf("Start returns %v, leave has %v, want %v", err, left, c.want)
			}
			if err := d.Start(t.Context(), begun, untilIntakeEnds, func(*runtime.Phases, error) {}); err != errAgain {
				t.Errorf("a second Start: %v", err)
			}
			if first, last := d.states[0], d.states[len(d.states)-1]; first != observe.StateStarting || last != observe.StateStopped {
				t.Errorf("states %v", d.states)
			}
		})
	}
}

// A drained worker stays until it is asked to stop.
func TestDrainedLifeStays(t *testing.T) {
	d := newDiary()
	drained, ended := make(chan struct{}), make(chan error, 1)
	enter := d.Entered
	d.Entered = func(s observe.State) {
		if enter(s); s == observe.StateDrained {
			close(drained)
		}
	}
	go func() { ended <- d.Start(t.Context(), begun, untilIntakeEnds, func(*runtime.Phases, error) {}) }()
	d.Life.Stop.Drain()
	<-drained
	select {
	case err := <-ended:
		t.Fatalf("Start has returned %v", err)
	default:
	}
	d.Ask()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	want := []observe.State{observe.StateStarting, observe.StateRunning, observe.StateDraining, observe.StateDrained, observe.StateStopped}
	if !slices.Equal(d.states, want) && !slices.Equal(d.states, slices.DeleteFunc(want, func(s observe.State) bool { return s == observe.StateDraining })) {
		t.Errorf("states %v, want %v", d.states, want)
	}
}

// A drained worker that fails does not stay: Start returns the error.
func TestDrainedLifeThatFails(t *testing.T) {
	d := newDiary()
	enter := d.Entered
	d.Entered = func(s observe.State) {
		if enter(s); s == observe.StateDrained {
			d.Ask()
		}
	}
	d.Life.Stop.Drain()
	err := d.Start(t.Context(), begun, func(*runtime.Phases) error { return errFirst }, func(*runtime.Phases, error) {})
	if !errors.Is(err, errFirst) || slices.Contains(d.states, observe.StateDrained) {
		t.Errorf("Start returns %v, states %v", err, d.states)
	}
}
