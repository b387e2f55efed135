package jobs

import (
	"context"
	"errors"
	"time"

	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
	"github.com/pgfrontier/worker/sim/server"
	"github.com/pgfrontier/worker/sim/stage"
)

const (
	workBackendsEnded history.Fault = "backends ended, with a statement or a transaction of a worker"
)

// serverFaults end a backend of the server, or the server.
var serverFaults = []faultRow{
	{Row: fault.New("kill-work", "ends a backend that works for a worker of jobs", workBackendsEnded),
		worker: at(terminating(workBackendsEnded, `state <> 'idle'`), inRun, inRun, inRun)},
	{Row: fault.New("kill-lock", "ends the backend that holds a worker's or the leader's lock", stage.LockBackendsEnded),
		worker: at(terminating(stage.LockBackendsEnded, server.LockBackends), inRun, inRun, inRun)},
	{Row: fault.New("kill-listener", "ends the backend of a worker's listener", stage.ListenerBackendsEnded),
		worker: at(terminating(stage.ListenerBackendsEnded, server.ListenerBackends), inRun, inRun, inRun)},
	{Row: fault.New("server-crash", "kills the server with all its processes, while handlers run, at a claim or at a COMMIT",
		history.ServerCrashes).Reaching(oracle.ServerCrashes).Needing(fault.OwnServer),
		seldom: true, outage: true, worker: at(crashing(history.ServerCrashes, (*server.Instance).Kill, true), inRun, afterClaim, afterTx)},
	{Row: fault.New("backend-crash", "kills a backend, for which the server kills all others and recovers",
		stage.BackendCrashes).Reaching(oracle.ServerCrashes).Needing(fault.OwnServer),
		seldom: true, outage: true, worker: at(crashing(stage.BackendCrashes, (*server.Instance).KillBackend, false), inRun, inRun, afterClaim, afterClaim)},
	{Row: fault.New(stage.AsyncWritersOn, "lets enqueuers not wait for their commits to be safe, of which a crash may take some back",
		stage.AsyncCommits).Reaching(oracle.UnsafeEnqueues).Needing(fault.OwnServer),
		seldom: true, async: true},
	{Row: fault.New(stage.AsyncWorkersOn, "lets workers not wait for their commits to be safe: a claim that a crash took back is made again",
		stage.AsyncWorkers).Needing(fault.OwnServer),
		seldom: true, async: true},
}

// terminating ends a backend of the worker. The worker must recover by itself.
func terminating(f history.Fault, whose string) func(s *slot, ctx, intake context.Context, at point) error {
	return func(s *slot, ctx, intake context.Context, at point) error {
		var ended bool
		var err error
		_, there := s.inject(intake, at, func() {
			s.of.ledger.fault(s.Node.Name)
			ended, err = s.On.Terminate(ctx, s.Node.Name, whose)
		})
		if ended {
			s.Happened(f, at.found(there))
		}
		return err
	}
}

// crashing crashes the server while a worker works. What workers lose then is nobody's fault.
func crashing(f history.Fault, kill func(*server.Instance, context.Context, string) (bool, error), start bool) func(s *slot, ctx, intake context.Context, at point) error {
	return func(s *slot, ctx, intake context.Context, at point) error {
		var killed bool
		var err error
		var from time.Time
		_, there := s.inject(intake, at, func() {
			s.of.faultAll()
			from = time.Now()
			killed, err = kill(s.of.on.Instance, ctx, s.Node.Name)
		})
		if !killed {
			return err
		}
		s.Happened(f, at.found(there))
		if start && err == nil {
			s.Pause(intake, 0, 300*time.Millisecond)
		}
		err = errors.Join(err, s.of.on.AwaitRecovery(start))
		s.of.faultAll()
		s.of.ledger.outage(from)
		s.Over(f)
		return err
	}
}
