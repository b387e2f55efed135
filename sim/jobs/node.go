package jobs

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/network"
	"github.com/pgfrontier/worker/sim/stage"
)

// node is a process as far as the database can tell: one worker of jobs, and its
// machine.
type node struct {
	*stage.Machine
	knobs   Knobs
	version int64 // of the program, which says what schedules it has
	worker  *jobs.Worker
	notes   notes
	armed   atomic.Pointer[network.Failpoint]
	gone    atomic.Bool // it was crashed: its handlers record nothing more
	unable  atomic.Bool // it may not be able to store outcomes: a connection died in silence, or an id is taken

	dice   *rand.Rand // of all handlers
	dicing sync.Mutex
}

// notes is where a worker's handlers and its observer record what they did.
type notes interface {
	begin(r history.JobRun) (number int)
	end(number int, outcome string)
	tell(t history.Told)
}

func (n *node) id() string { return n.worker.ID().String() }

// between draws a duration for a handler.
func (n *node) between(low, high time.Duration) time.Duration {
	n.dicing.Lock()
	defer n.dicing.Unlock()
	return fault.Between(n.dice, low, high)
}

// reach is called by the handlers as they begin.
func (n *node) reach() {
	if p := n.armed.Load(); p != nil && n.armed.CompareAndSwap(p, nil) {
		p.Fire()
	}
}

func (n *node) Ready(ctx context.Context) bool {
	return n.AwaitRunning(ctx, func() bool { return n.worker.Status().State == observe.StateRunning })
}

// Broke is false: a handler that breaks the rules ends its job, not the worker.
func (n *node) Broke() bool { return false }

func (n *node) Stop() { n.worker.Stop() }

// crash ends the process, without a clean stop.
func (n *node) crash(how func(*network.Network)) {
	n.gone.Store(true)
	how(n.Net)
	n.Cancel()
}

// Await waits for the end of the worker that was asked to end. Nobody waits for a
// process that has crashed.
func (n *node) Await(asked string) history.Exit {
	bound := n.knobs.EndBound(n.Bounds)
	if asked == history.ExitCrashed {
		return history.Exit{Worker: n.Name, Asked: asked, Bound: bound, InTime: true}
	}
	x := n.AwaitEnd(asked, bound)
	if x.InTime && n.unable.Load() && errors.Is(n.Err, jobs.ErrUnsettled) {
		x.Asked = history.ExitOutage
	}
	return x
}
