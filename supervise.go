package worker

import (
	"context"
	"fmt"
)

// supervise runs the loops of the consumers that are assigned to this worker,
// until intake ends or one fails for good, and returns when all have ended.
// At no time are there two loops of one consumer.
func (w *Worker) supervise(ctx, intake context.Context) error {
	type end struct {
		name string
		err  error
	}
	var (
		ended    = make(chan end)
		stop     = map[string]context.CancelFunc{} // of the loops that have not ended
		draining = intake.Done()
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
				tell(w.cfg.Observer.ConsumerStarted, ConsumerInfo{Consumer: u.name})
				go func() {
					err := fmt.Errorf("worker: the handler of consumer %q called runtime.Goexit (testing's FailNow does)", u.name)
					defer func() { ended <- end{u.name, err} }()
					loop := &consumerLoop{w: w, unit: u, status: w.status[u.name]}
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
			draining = nil
		case e := <-ended:
			stop[e.name]()
			delete(stop, e.name)
			tell(w.cfg.Observer.ConsumerStopped, ConsumerInfo{Consumer: e.name})
			if fatal == nil {
				fatal = e.err
			}
		}
	}
}
