package consume

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/observe"
)

// supervise runs the loops of the units that are assigned to this worker, until intake
// ends. It returns when all loops have ended. A loop with a fatal error ends the intake by
// drain. A unit never has two loops at once.
//
// A handler that still runs after stopLimit ignores its context. supervise leaves such
// handlers behind, each with its loop, and names them in its error.
func (w *Worker) supervise(ctx, intake context.Context, drain func()) error {
	type end struct {
		unit *unit
		err  error
	}
	var (
		ended    = make(chan end)
		left     = make(chan struct{})             // closed when nobody receives the ends of loops any more
		stop     = map[string]context.CancelFunc{} // of the loops that have not ended
		draining = intake.Done()
		overdue  <-chan time.Time
		fatal    error
	)
	defer close(left)
	for {
		changed := w.coord.Changed()
		assigned := map[string]bool{}
		if intake.Err() == nil && fatal == nil {
			for _, name := range w.coord.Assigned() {
				assigned[name] = w.unit(name) != nil
			}
		}
		for _, u := range w.allUnits() {
			cancel, running := stop[u.name]
			switch {
			case running && !assigned[u.name]:
				cancel()
			case !running && assigned[u.name]:
				loopIntake, cancel := context.WithCancel(intake)
				stop[u.name] = cancel
				u.status.begin()
				w.observers.Notify(u.started(w.cfg.BatchSize))
				go func() {
					err := fmt.Errorf("worker: the loop of consumer %q ended: %w", u.name, errGoexit)
					defer func() {
						select {
						case ended <- end{u, err}:
						case <-left:
						}
					}()
					loop := newLoop(w, u)
					loop.stop = intake
					err = loop.run(ctx, loopIntake)
				}()
			}
			u.status.assigned(assigned[u.name])
			if !running && !assigned[u.name] {
				w.dropPart(u)
			}
		}
		if fatal != nil || intake.Err() != nil {
			if len(stop) == 0 {
				return fatal
			}
			select {
			case <-w.unfinished: // handOver has not received the last value
			default:
			}
			w.unfinished <- slices.Collect(maps.Keys(stop))
		}
		select {
		case <-changed:
		case <-draining:
			draining, overdue = nil, time.After(w.stopLimit())
		case <-overdue:
			return errtext.Join(fatal, w.leftBehind(stop))
		case e := <-ended:
			stop[e.unit.name]()
			delete(stop, e.unit.name)
			w.forgetConditions(e.unit.name)
			w.observers.Notify(observe.ConsumerStopped{Consumer: e.unit.name})
			if e.err != nil {
				fatal = errtext.Join(fatal, e.err)
				drain()
			}
		}
	}
}

// stopGrace is the time that a stop allows beyond the time of the batches in flight. It is
// for handlers that return late, for rollbacks, and for a last outcome lookup.
func (w *Worker) stopGrace() time.Duration { return 2 * w.limits.leave }

// stopLimit is how long a stop waits for the batches in flight.
func (w *Worker) stopLimit() time.Duration {
	limit := w.cfg.ShutdownTimeout
	if limit == 0 {
		limit = w.cfg.BatchTimeout
	}
	return limit + w.stopGrace()
}

// leftBehind returns an error that names the consumers whose handlers a stop has not waited
// for.
func (w *Worker) leftBehind(running map[string]context.CancelFunc) error {
	var names []string
	for name := range running {
		names = append(names, fmt.Sprintf("%q", name))
	}
	slices.Sort(names)
	return fmt.Errorf("%w: consumer %s, %v after the stop began", ErrHandlerOverdue, strings.Join(names, ", "), w.stopLimit())
}
