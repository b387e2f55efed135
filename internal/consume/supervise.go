package consume

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pgfrontier/worker/coord"
	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/observe"
)

// supervisor runs the loops of the units that are assigned to this worker. A unit never has
// two loops at once.
type supervisor struct {
	*env
	coord *coord.Coordinator
	loop  func(ctx, stop, intake context.Context, u *unit) error // runs a unit until intake ends; stop is the worker's intake
	cfg   *Config

	stops      map[string]context.CancelFunc // of the loops that have not ended, by unit
	ended      chan loopEnd
	left       chan struct{} // closed when nobody receives the ends of loops any more
	unfinished chan []string // of a draining worker: the units whose loops have not ended, the latest value only
}

// loopEnd is the end of a unit's loop.
type loopEnd struct {
	unit *unit
	err  error
}

// run runs loops until intake ends. It returns when all loops have ended. A loop with a
// fatal error ends the intake by drain.
//
// A handler that still runs after [limits.stop] ignores its context. run leaves such handlers
// behind, each with its loop, and names them in its error.
func (s *supervisor) run(ctx, intake context.Context, drain func()) (fatal error) {
	s.stops, s.ended, s.left = map[string]context.CancelFunc{}, make(chan loopEnd), make(chan struct{})
	defer close(s.left)
	draining := intake.Done()
	var overdue <-chan time.Time
	for {
		changed := s.coord.Changed()
		s.start(ctx, intake, fatal == nil && intake.Err() == nil)
		if fatal != nil || intake.Err() != nil {
			if len(s.stops) == 0 {
				return fatal
			}
			select {
			case <-s.unfinished: // handOver has not received the last value
			default:
			}
			s.unfinished <- slices.Collect(maps.Keys(s.stops))
		}
		select {
		case <-changed:
		case <-draining:
			draining, overdue = nil, time.After(s.limits.stop(s.cfg))
		case <-overdue:
			return errtext.Join(fatal, s.leftBehind())
		case e := <-s.ended:
			s.stops[e.unit.name]()
			delete(s.stops, e.unit.name)
			s.forgetConditions(e.unit.name)
			s.observers.Notify(observe.ConsumerStopped{Consumer: e.unit.name})
			if e.err != nil {
				fatal = errtext.Join(fatal, e.err)
				drain()
			}
		}
	}
}

// start starts the loops of the units that are assigned to this worker, and stops the
// others. Without takes, no unit counts as assigned.
func (s *supervisor) start(ctx, intake context.Context, takes bool) {
	assigned := map[string]bool{}
	if takes {
		for _, name := range s.coord.Assigned() {
			assigned[name] = s.unit(name) != nil
		}
	}
	for _, u := range s.allUnits() {
		stop, running := s.stops[u.name]
		switch {
		case running && !assigned[u.name]:
			stop()
		case !running && assigned[u.name]:
			s.begin(ctx, intake, u)
		}
		u.status.assigned(assigned[u.name])
		if !running && !assigned[u.name] {
			s.dropPart(u)
		}
	}
}

// begin begins the loop of a unit.
func (s *supervisor) begin(ctx, intake context.Context, u *unit) {
	loopIntake, stop := context.WithCancel(intake)
	s.stops[u.name] = stop
	u.status.begin()
	s.observers.Notify(u.started(s.cfg.BatchSize))
	go func() {
		err := fmt.Errorf("worker: the loop of consumer %q ended: %w", u.name, errGoexit)
		defer func() {
			select {
			case s.ended <- loopEnd{u, err}:
			case <-s.left:
			}
		}()
		err = s.loop(ctx, intake, loopIntake, u)
	}()
}

// leftBehind returns an error that names the consumers whose handlers a stop has not waited
// for.
func (s *supervisor) leftBehind() error {
	var names []string
	for name := range s.stops {
		names = append(names, fmt.Sprintf("%q", name))
	}
	slices.Sort(names)
	return fmt.Errorf("%w: consumer %s, %v after the stop began", ErrHandlerOverdue, strings.Join(names, ", "), s.limits.stop(s.cfg))
}

// handOver hands each consumer back when its own batch has ended, from the end of the
// intake on. Until then the consumer stays assigned to this worker: if the batch's handler
// has ended the transaction, only this worker can set the checkpoint back.
func (s *supervisor) handOver(running context.Context) {
	var kept []string
	var again <-chan time.Time // nil: the last try succeeded
	for failures := 0; ; {
		select {
		case kept = <-s.unfinished:
		case <-again:
		case <-running.Done():
			return
		}
		ctx, cancel := context.WithTimeout(running, s.limits.leave)
		err := s.coord.Drain(ctx, kept)
		cancel()
		s.taskFailed(running, "hand the consumers over", "", err)
		if again, failures = nil, failures+1; err == nil {
			failures = 0
		} else {
			again = time.After(backoff.Infrastructure(failures))
		}
	}
}
