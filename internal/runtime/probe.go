package runtime

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/watchdog"
	"github.com/pgfrontier/worker/observe"
)

// Probe answers the probes of an orchestrator.
type Probe struct {
	State      func() observe.State
	Loops      func() []Loop // called while the worker runs
	HangsAfter time.Duration // how long an iteration of a loop, or a call of an observer, may take
	Observers  *Observers
	Answers    func(ctx context.Context) error // asks the database; see [Answers]
	Reasons    func() []error                  // what else keeps a running worker from its work
}

// Loop is a loop of a worker.
type Loop struct {
	Name  string        // what follows "the loop": "of the heartbeats"
	Lasts time.Duration // how long its current iteration has taken; 0: the loop is idle
}

// Live returns an error if only a new process helps. It asks no database.
func (p Probe) Live() error {
	if p.State() == observe.StateStopped {
		return errors.New("the worker has stopped: start the process again; what Start returned says why")
	}
	return p.Hanging()
}

// Hanging returns an error if a loop hangs or an observer does not return, while the worker runs.
// The loops of other workers have ended, or do not run yet.
func (p Probe) Hanging() error {
	if p.State() != observe.StateRunning {
		return nil
	}
	for _, l := range p.Loops() {
		if err := watchdog.Hung(l.Name, l.Lasts, p.HangsAfter); err != nil {
			return err
		}
	}
	hook, lasts := p.Observers.Longest() // also called by loops without a watchdog
	return watchdog.Hung("that calls the observer's "+hook, lasts, p.HangsAfter)
}

// Ready returns the reasons why the worker does not do all of its work. Each is one line.
func (p Probe) Ready(ctx context.Context) (all []error) {
	if err := p.idle(); err != nil {
		return []error{err}
	}
	silent := p.Answers(ctx)
	if err := p.idle(); err != nil { // the worker was stopped meanwhile
		return []error{err}
	}
	for _, err := range append([]error{silent, p.Live()}, p.Reasons()...) {
		if err != nil {
			all = append(all, errtext.Of(err))
		}
	}
	return all
}

// idle returns an error if the worker does not run.
func (p Probe) idle() error {
	switch s := p.State(); s {
	case observe.StateRunning:
		return nil
	case observe.StateDrained:
		return errors.New("the worker is drained, as an operator has asked: start the process again when it is to work")
	default:
		return fmt.Errorf("the worker is %s: wait if it starts or drains, start the process again if it has stopped", s)
	}
}

// Answers returns an error if the database does not answer within limit.
func Answers(ctx context.Context, db *sql.DB, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := pgdriver.Answers(ctx, db); err != nil {
		return pgdriver.Unanswered(errtext.Of(err))
	}
	return nil
}

// LateHeartbeat returns an error if the last heartbeat is older than timeout. taken says what other
// workers have done meanwhile.
func LateHeartbeat(last time.Time, timeout time.Duration, taken string) error {
	ago := time.Since(last)
	if ago <= timeout {
		return nil
	}
	return fmt.Errorf("the last heartbeat was %v ago, so other workers %s (HeartbeatTimeout is %v): see that the database answers, and that the pool has a connection left", ago.Round(time.Second), taken, timeout)
}

// LostSlots returns an error if handlers that were given up keep all slots. of names the queue of
// the slots, or is empty. since is when the first of them got its slot.
func LostSlots(lost, slots int, of string, since time.Time) error {
	if lost == 0 || lost < slots {
		return nil
	}
	return fmt.Errorf("handlers that were given up keep all %d slots%s, the first since %s: start the process again, with handlers that return when their context ends", slots, of, since.UTC().Format(time.DateTime+"Z"))
}
