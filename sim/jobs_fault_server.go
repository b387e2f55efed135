package sim

import (
	"context"
	"errors"
	"time"

	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

const (
	workBackendsEnded history.Fault = "backends ended, with a statement or a transaction of a worker"
)

// jobServerFaults end a backend of the server, or the server.
var jobServerFaults = []jobFaultRow{
	{
		Row: fault.Row{
			Name: "kill-work", Does: "ends a backend that works for a worker of jobs",
			Counts: []history.Fault{workBackendsEnded},
		},
		worker: atJob(terminatingJob(workBackendsEnded, `state <> 'idle'`), inRun, inRun, inRun),
	},
	{
		Row: fault.Row{
			Name: "kill-lock", Does: "ends the backend that holds a worker's or the leader's lock",
			Counts: []history.Fault{lockBackendsEnded},
		},
		worker: atJob(terminatingJob(lockBackendsEnded, ofTheLocks), inRun, inRun, inRun),
	},
	{
		Row: fault.Row{
			Name: "kill-listener", Does: "ends the backend of a worker's listener",
			Counts: []history.Fault{listenerBackendsEnded},
		},
		worker: atJob(terminatingJob(listenerBackendsEnded, ofTheListener), inRun, inRun, inRun),
	},
	{
		Row: fault.Row{
			Name: "server-crash", Does: "kills the server with all its processes, while handlers run, at a claim or at a COMMIT",
			Counts:  []history.Fault{history.ServerCrashes},
			Reaches: []oracle.Condition{oracle.ServerCrashes},
		},
		seldom: true, outage: true, needs: []*requirement{ownServer},
		worker: atJob(crashingJob(history.ServerCrashes, (*database).kill, true), inRun, afterClaim, afterJobsTx),
	},
	{
		Row: fault.Row{
			Name: "backend-crash", Does: "kills a backend, for which the server kills all others and recovers",
			Counts:  []history.Fault{backendCrashes},
			Reaches: []oracle.Condition{oracle.ServerCrashes},
		},
		seldom: true, outage: true, needs: []*requirement{ownServer},
		worker: atJob(crashingJob(backendCrashes, (*database).killBackend, false), inRun, inRun, afterClaim, afterClaim),
	},
	{
		Row: fault.Row{
			Name: asyncWritersOn, Does: "lets enqueuers not wait for their commits to be safe, of which a crash may take some back",
			Counts:  []history.Fault{asyncCommits},
			Reaches: []oracle.Condition{oracle.UnsafeEnqueues},
		},
		seldom: true, async: true, needs: []*requirement{ownServer},
	},
	{
		Row: fault.Row{
			Name: asyncWorkersOn, Does: "lets workers not wait for their commits to be safe: a claim that a crash took back is made again",
			Counts: []history.Fault{asyncWorkers},
		},
		seldom: true, async: true, needs: []*requirement{ownServer},
	},
}

// terminatingJob ends a backend of the worker. It is to recover by itself.
func terminatingJob(f history.Fault, whose string) func(s *jobSlot, ctx, intake context.Context, at jobPoint) error {
	return func(s *jobSlot, ctx, intake context.Context, at jobPoint) error {
		var ended bool
		var err error
		_, there := s.inject(intake, at, func() {
			s.of.book.fault(s.node.name)
			ended, err = s.on.terminate(ctx, s.node.name, whose)
		})
		if ended {
			s.happened(f, at.found(there))
		}
		return err
	}
}

// crashingJob crashes the server while a worker works. Nothing that a worker loses
// then is a fault of somebody's.
func crashingJob(f history.Fault, kill func(*database, context.Context, string) (bool, error), start bool) func(s *jobSlot, ctx, intake context.Context, at jobPoint) error {
	return func(s *jobSlot, ctx, intake context.Context, at jobPoint) error {
		var killed bool
		var err error
		var from time.Time
		_, there := s.inject(intake, at, func() {
			s.of.faultAll()
			from = time.Now()
			killed, err = kill(s.of.on, ctx, s.node.name)
		})
		if !killed {
			return err
		}
		s.happened(f, at.found(there))
		if start && err == nil {
			s.pause(intake, 0, 300*time.Millisecond)
		}
		err = errors.Join(err, s.on.awaitRecovery(start))
		s.of.faultAll()
		s.of.book.outage(from)
		s.over(f)
		return err
	}
}
