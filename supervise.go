package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
)

// supervise runs the loops of the consumers that are assigned to this worker,
// until intake ends, and returns when all have ended. One that fails for good
// ends the intake by drain. At no time are there two loops of one consumer.
//
// Handlers that still run when stopLimit has passed ignore their context.
// supervise leaves them behind, each with its loop, and names them.
func (w *Worker) supervise(ctx, intake context.Context, drain func()) error {
	type end struct {
		name string
		err  error
	}
	var (
		ended    = make(chan end, len(w.units))    // room for those left behind
		stop     = map[string]context.CancelFunc{} // of the loops that have not ended
		draining = intake.Done()
		overdue  <-chan time.Time
		fatal    error
	)
	for {
		changed := w.coord.Changed()
		assigned := map[string]bool{}
		if intake.Err() == nil && fatal == nil {
			for _, name := range w.coord.Assigned() {
				assigned[name] = true
			}
		} else {
			w.state.Store(StateDraining)
		}
		for _, u := range w.units {
			cancel, running := stop[u.name]
			switch {
			case running && !assigned[u.name]:
				cancel()
			case !running && assigned[u.name]:
				loopIntake, cancel := context.WithCancel(intake)
				stop[u.name] = cancel
				w.status[u.name].begin()
				tell(w.observer.ConsumerStarted, ConsumerInfo{Consumer: u.name})
				go func() {
					err := fmt.Errorf("worker: the loop of consumer %q ended: %w", u.name, errGoexit)
					defer func() { ended <- end{u.name, err} }()
					loop := w.newLoop(u)
					loop.stop = intake
					err = loop.run(ctx, loopIntake)
				}()
			}
			w.status[u.name].assigned(assigned[u.name])
		}
		if len(stop) == 0 && (fatal != nil || intake.Err() != nil) {
			return fatal
		}
		select {
		case <-changed:
		case <-draining:
			draining, overdue = nil, time.After(w.stopLimit())
		case <-overdue:
			return errtext.Join(fatal, w.leftBehind(stop))
		case e := <-ended:
			stop[e.name]()
			delete(stop, e.name)
			w.troubles.leave(e.name)
			tell(w.observer.ConsumerStopped, ConsumerInfo{Consumer: e.name})
			if e.err != nil {
				fatal = errtext.Join(fatal, e.err)
				drain()
			}
		}
	}
}
