package events

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
	"github.com/pgfrontier/worker/sim/server"
	"github.com/pgfrontier/worker/sim/stage"
)

// crashFaults crash the server.
var crashFaults = []faultRow{
	{Row: fault.New("server-crash", "kills the server with all its processes, in a batch or at its COMMIT",
		history.ServerCrashes).Reaching(oracle.ServerCrashes, oracle.BrokenBatches).Needing(fault.OwnServer),
		outage: true, worker: at(crashing(history.ServerCrashes, (*server.Instance).Kill, true), afterEffect, afterCommit)},
	{Row: fault.New("backend-crash", "kills a backend, for which the server kills all others and recovers",
		stage.BackendCrashes).Reaching(oracle.ServerCrashes, oracle.BrokenBatches).Needing(fault.OwnServer),
		outage: true, worker: at(crashing(stage.BackendCrashes, (*server.Instance).KillBackend, false), afterEffect)},
}

// asyncFaults are the settings for which a crash takes commits back.
var asyncFaults = []faultRow{
	{Row: fault.New(stage.AsyncWritersOn, "lets writers not wait for their commits to be safe, of which a crash may take some back",
		stage.AsyncCommits).Reaching(oracle.UnsafeCommits).Needing(fault.OwnServer),
		async: true},
	{Row: fault.New(stage.AsyncWorkersOn, "lets workers not wait for their commits to be safe", stage.AsyncWorkers).Needing(fault.OwnServer),
		async: true},
}

// crashing crashes the server while a worker works.
func crashing(f history.Fault, kill func(*server.Instance, context.Context, string) (bool, error), start bool) func(s *Slot, ctx, intake context.Context, at point) error {
	return func(s *Slot, ctx, intake context.Context, at point) error {
		var killed bool
		var err error
		_, inBatch := s.inject(intake, at, func() { killed, err = kill(s.on.Instance, ctx, s.Node.Name) })
		if !killed {
			return err
		}
		s.Happened(f, whereabouts(at, inBatch))
		if start && err == nil {
			s.Pause(intake, 0, 300*time.Millisecond)
		}
		err = errors.Join(err, s.on.AwaitRecovery(start))
		s.Over(f)
		return err
	}
}

const (
	batchBackendsEnded    history.Fault = "backends ended, of a batch"
	frontierBackendsEnded history.Fault = "backends ended, of a frontier"
)

// backendFaults end one backend of the server.
var backendFaults = []faultRow{
	{Row: fault.New("kill-batch", "ends the server's backend of a batch", batchBackendsEnded).Reaching(oracle.BrokenBatches),
		worker: at(terminating(batchBackendsEnded, server.BatchBackends), afterEffect)},
	{Row: fault.New("kill-lock", "ends the backend that holds a worker's or the leader's lock", stage.LockBackendsEnded),
		worker: at(terminating(stage.LockBackendsEnded, server.LockBackends), afterEffect)},
	{Row: fault.New("kill-scan", "ends the backend that a frontier reads through", frontierBackendsEnded),
		worker: at(terminating(frontierBackendsEnded, server.FrontierBackends), afterGuard, afterEffect)},
	{Row: fault.New("kill-listener", "ends the backend of a worker's listener", stage.ListenerBackendsEnded),
		listens: true, worker: at(terminating(stage.ListenerBackendsEnded, server.ListenerBackends), afterGuard)},
}

// terminating ends a backend of the worker while a batch is in flight. It is to
// recover by itself.
func terminating(f history.Fault, whose string) func(s *Slot, ctx, intake context.Context, at point) error {
	return func(s *Slot, ctx, intake context.Context, at point) error {
		var ended bool
		var err error
		_, inBatch := s.inject(intake, at, func() { ended, err = s.on.Terminate(ctx, s.Node.Name, whose) })
		if ended {
			s.Happened(f, whereabouts(at, inBatch))
		}
		return err
	}
}

const (
	copiesMade    history.Fault = "servers stopped for a cold copy"
	copiesPutBack history.Fault = "servers set back to a cold copy"
)

// restoreFaults set the server back to what it was.
var restoreFaults = []faultRow{{
	Row: fault.New("restore", "stops the server, copies its data, and puts the copy back some time later",
		copiesPutBack).Reaching(oracle.ServerSetBack).Needing(fault.OwnServer).AlsoCounting(copiesMade),
	outage: true,
	worker: at((*Slot).restore, afterEffect, afterCommit),
}}

// restore makes a cold copy of the server, and some time later puts it back while the workers run.
// The end of the faults hurries the second step, but does not prevent it.
func (s *Slot) restore(ctx, intake context.Context, at point) error {
	if !s.on.copies.restoring.TryLock() {
		return nil
	}
	defer s.on.copies.restoring.Unlock()
	s.on.copies.waits.Store(true)
	defer s.on.copies.waits.Store(false)
	saved, err := s.on.copies.save(ctx, s.on.Own.Save)
	if !saved || err != nil {
		return err
	}
	s.passed(copiesMade)
	s.Pause(intake, 100*time.Millisecond, 100*time.Millisecond+s.scenario.Knobs.Calm/2)
	restored := false
	putBack := func() { restored, err = s.on.copies.putBack(ctx, s.on.Own.PutBack) }
	if injected, _ := s.inject(intake, at, putBack); !injected && ctx.Err() == nil {
		putBack()
	}
	if restored && err == nil {
		s.passed(copiesPutBack)
		s.Pause(intake, 500*time.Millisecond, time.Second) // for positions to be drawn again
	}
	return err
}

// passed counts a fault of the server, and records that it is over.
func (s *Slot) passed(f history.Fault) {
	s.Tally.Add(f, 1)
	s.History.Add("", "", history.FaultInjected, history.Injection{Fault: f})
	s.History.Add("", "", history.FaultOver, history.Injection{Fault: f})
}

const (
	ledToLagging history.Fault = "connections that led to a lagging standby"
	ledToSecond  history.Fault = "connections that led to a second primary"
)

// standbyFaults lead connections to another server than the primary.
var standbyFaults = []faultRow{
	{Row: fault.New("standby", "leads connections of a worker to a standby that lags", ledToLagging).Needing(fault.OwnServer, fault.Replicating),
		worker: at(misleading(ledToLagging, false), afterEffect, afterEffect)},
	{Row: fault.New("split", "promotes a standby beside the primary, and leads connections of a worker there",
		ledToSecond).Needing(fault.OwnServer, fault.Replicating),
		worker: at(misleading(ledToSecond, true), afterEffect, afterEffect)},
}

// misleading leads connections of the worker to the follower for a while. The follower is a standby
// that replays nothing meanwhile. If apart, it was promoted although the primary lives, and ends
// for good afterwards. Connections to the standby stay there: the worker must detect that.
func misleading(f history.Fault, apart bool) func(s *Slot, ctx, intake context.Context, at point) error {
	return func(s *Slot, ctx, intake context.Context, _ point) error {
		d := s.on.follower
		if !d.TryTake() {
			return nil
		}
		if err := d.Ensure(ctx); err != nil {
			d.Release()
			return d.Excuse(err)
		}
		err := s.mislead(ctx, intake, d, f, apart)
		d.Release()
		if apart || err != nil {
			err = errors.Join(d.Excuse(err), d.Stop())
		}
		return err
	}
}

func (s *Slot) mislead(ctx, intake context.Context, d *server.Follower, f history.Fault, apart bool) error {
	before, after := `SELECT pg_wal_replay_pause()`, `SELECT pg_wal_replay_resume()`
	if apart {
		before, after = `SELECT pg_promote()`, ``
	}
	if err := d.Tell(ctx, before); err != nil {
		return fmt.Errorf("sim: the follower: %w", err)
	}
	s.Pause(intake, 100*time.Millisecond, 500*time.Millisecond)
	n := s.Node
	if apart {
		n.apart.Store(true)
	}
	n.Net.Mislead(d.Address())
	s.History.Add(n.Name, "", history.FaultInjected, history.Injection{Fault: f})
	s.Pause(intake, 500*time.Millisecond, 1500*time.Millisecond)
	s.Tally.Add(f, n.Net.Mislead(""))
	s.History.Add(n.Name, "", history.FaultOver, history.Injection{Fault: f})
	if apart {
		return nil // it ends
	}
	return d.Tell(ctx, after)
}
