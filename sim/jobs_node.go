package sim

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
)

// jobNode is a process as far as the database can tell: one worker of jobs, and its
// machine.
type jobNode struct {
	*machine
	knobs   JobKnobs
	version int64 // of the program, which says what schedules it has
	worker  *jobs.Worker
	notes   jobNotes
	gone    atomic.Bool // it was crashed: what its handlers still do, nobody hears
	unable  atomic.Bool // it may not be able to store what became of some runs: connections died in silence, or an id is taken

	dice   *rand.Rand // of all handlers
	dicing sync.Mutex
}

// jobNotes is where a worker's handlers and its observer take down what they did.
type jobNotes interface {
	begin(r history.JobRun) (number int)
	end(number int, outcome string)
	tell(t history.Told)
}

// jobLost is the state that the history has of a job that is another worker's.
const jobLost = "lost"

// newJobNode returns a node of a version on a machine, whose worker may listen by a
// connection string.
func newJobNode(s Scenario, m *machine, version int64, notes jobNotes, listen string) *jobNode {
	n := &jobNode{machine: m, knobs: *s.Jobs, version: version, notes: notes, dice: fault.Dice(s.Seed, "handlers "+m.name)}
	if !chance(n.dice, n.knobs.Listeners) {
		listen = ""
	}
	n.worker = jobs.NewWorker(n.db, n.handlers(), append(n.knobs.options(listen), flow.Advance(), jobs.WithLogger(slog.New(slog.DiscardHandler)), jobs.WithObserver(n.observer()))...)
	return n
}

// startNode starts the life-th worker of a slot.
func (s *jobSimulation) startNode(ctx context.Context, slot, life int) (*jobNode, error) {
	scenario := s.builds.of(s.scenario, slot, life, &s.tally)
	m, err := newMachine(scenario, s.on, s.history, slot, life, scenario.Jobs.Pool)
	if err != nil {
		return nil, err
	}
	n := newJobNode(scenario, m, s.version.Load(), s.book, m.listening())
	s.book.add(history.Runner{Name: n.name, ID: n.id(), Version: n.version})
	if ends(s.on.life()) {
		s.book.fault(n.name)
	}
	if s.scenario.Faults[asyncWorkersOn] > 0 {
		s.tally.add(asyncWorkers, 1)
	}
	n.launch(ctx, n.start)
	return n, nil
}

func (n *jobNode) id() string { return n.worker.ID().String() }

// between draws a duration for a handler.
func (n *jobNode) between(low, high time.Duration) time.Duration {
	n.dicing.Lock()
	defer n.dicing.Unlock()
	return between(n.dice, low, high)
}

// observer records what the worker reports of itself.
func (n *jobNode) observer() observe.Observer {
	return func(e observe.Event) {
		switch e := e.(type) {
		case observe.WorkerStarted:
			n.history.Add(n.name, "", history.WorkerBegan, history.Life{ID: e.ID.String()})
		case observe.WorkerStopped:
			n.history.Add(n.name, "", history.WorkerEnded, history.Life{ID: e.ID.String(), Error: textOf(e.Err)})
		case observe.LeadershipChanged:
			n.history.Add(n.name, "", map[bool]history.Kind{true: history.Leads, false: history.LeadsNoMore}[e.Leader], nil)
		case observe.JobDone:
			if n.gone.Load() {
				return
			}
			n.notes.tell(history.Told{Worker: n.id(), ID: e.ID, Attempt: e.Attempt, State: e.State})
			n.history.Add(n.name, e.Queue, history.JobEnded, history.JobDone{ID: e.ID, Kind: e.Kind, Attempt: e.Attempt, State: e.State, TookMS: ms(e.Took), Error: textOf(e.Err)})
		case observe.JobLost:
			if n.gone.Load() {
				return
			}
			n.notes.tell(history.Told{Worker: n.id(), ID: e.ID, Attempt: e.Attempt, Lost: true})
			n.history.Add(n.name, e.Queue, history.JobEnded, history.JobDone{ID: e.ID, Kind: e.Kind, Attempt: e.Attempt, State: jobLost})
		}
	}
}

// reach is called by the handlers as they begin.
func (n *jobNode) reach() {
	if p := n.armed.Load(); p != nil && n.armed.CompareAndSwap(p, nil) {
		p.fire()
	}
}

func (n *jobNode) ready(ctx context.Context) bool {
	return n.awaitRunning(ctx, func() bool { return n.worker.Status().State == jobs.WorkerRunning })
}

// broke is false: a handler that breaks the rules ends its job, not the worker.
func (n *jobNode) broke() bool { return false }

func (n *jobNode) stop() { n.worker.Stop() }

// crash ends the process: no goodbye.
func (n *jobNode) crash(how func(*network)) {
	n.gone.Store(true)
	how(n.net)
	n.cancel()
}

// await waits for the end of the worker that was asked to end. Nobody waits for a
// process that has crashed.
func (n *jobNode) await(asked string) history.Exit {
	bound := n.knobs.ShutdownTimeout + n.bounds.Of(leavingJobs)
	if asked == history.ExitCrashed {
		return history.Exit{Worker: n.name, Asked: asked, Bound: bound, InTime: true}
	}
	x := n.awaitEnd(asked, bound)
	if x.InTime && n.unable.Load() && errors.Is(n.err, jobs.ErrUnsettled) {
		x.Asked = history.ExitOutage
	}
	return x
}
