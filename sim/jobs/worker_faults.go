package jobs

import (
	"context"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/network"
	"github.com/pgfrontier/worker/sim/oracle"
	"github.com/pgfrontier/worker/sim/stage"
)

// workerFaults end a worker of jobs, or break what lies between it and the
// server.
var workerFaults = []faultRow{
	{Row: fault.New("crash", "ends a worker at once: while handlers run, at a claim, as it stores the end of runs, or at a COMMIT",
		history.Crashes, history.CommitCrashes, history.IdleCrashes).Reaching(oracle.LostWorkers, oracle.WorkersLostAtCommit),
		worker: at((*slot).crash, inRun, inRun, afterClaim, afterEnd, beforeTx, afterTx)},
	{Row: fault.New("vanish", "ends a worker and leaves its connections half open", stage.MachinesVanished).Reaching(oracle.LostWorkers),
		worker: at((*slot).vanish, inRun, inRun, inRun)},
	{Row: fault.New("cut", "resets all connections of a worker, before a claim, the end of a run or a COMMIT, or after it, so that the answer is lost",
		history.Cuts).Reaching(oracle.CutClaims, oracle.CutEnds, oracle.WorkersLostAtCommit),
		worker: at((*slot).cut, beforeClaim, beforeClaim, afterClaim, afterClaim, beforeEnd, afterEnd, beforeTx, afterTx)},
	{Row: fault.New("slow", "takes the server far from a worker for a while, so that answers take up to 0.1s", stage.WorkersSlowed),
		worker: at((*slot).slow, inRun, inRun, inRun)},
	{Row: fault.New("stall", "lets a worker hang past its time-outs, and come back as a zombie",
		history.Stalls).Reaching(oracle.Zombies, oracle.LostWorkers),
		worker: at((*slot).stall, inRun, inRun, beforeEnd, beforeTx)},
	{Row: fault.New("hole", "lets connections of a worker die in silence: nothing comes, and no error", history.Swallowed),
		seldom: true, worker: at((*slot).hole, inRun, inRun, inRun, inRun)},
	{Row: fault.New("restart", "stops a worker cleanly and starts another",
		stage.WorkersRestarted).Reaching(oracle.StoppedWorkers, oracle.Deployments),
		worker: at((*slot).restart, inRun, inRun, inRun)},
}

// crash ends the process at once, without a clean stop.
func (s *slot) crash(ctx, intake context.Context, at point) error {
	return s.end(ctx, intake, at, (*network.Network).Crash, 0)
}

// vanish takes the whole machine away: the server does not even see the connections
// end.
func (s *slot) vanish(ctx, intake context.Context, at point) error {
	return s.end(ctx, intake, at, (*network.Network).Vanish, stage.Lingering, stage.MachinesVanished)
}

// end ends the process in one way, which is counted as a crash and more, and starts another.
func (s *slot) end(ctx, intake context.Context, at point, how func(*network.Network), linger time.Duration, more ...history.Fault) error {
	injected, there := s.inject(intake, at, func() {
		s.of.ledger.crash(s.Node.Name)
		s.Node.crash(how)
	})
	if !injected {
		return nil
	}
	s.Crashed(at.where, there, at.sends != nil, more...)
	return s.Replace(ctx, intake, history.ExitCrashed, linger)
}

// cut resets the worker's connections. The worker must recover by itself.
func (s *slot) cut(_, intake context.Context, at point) error {
	if injected, there := s.inject(intake, at, func() {
		s.of.ledger.fault(s.Node.Name)
		s.Node.Net.Cut()
	}); injected {
		s.Happened(history.Cuts, at.found(there))
	}
	return nil
}

func (s *slot) slow(_, intake context.Context, _ point) error { return s.TakeFar(intake) }

// stall makes the worker a zombie: others take it for dead, run its jobs, and it
// goes on where it was. Some stalls are over before that. Not all workers stall at
// once: somebody must take the jobs.
func (s *slot) stall(ctx, intake context.Context, at point) error {
	select {
	case s.of.stalls <- struct{}{}:
		defer func() { <-s.of.stalls }()
	default:
		return nil
	}
	injected, there := s.inject(intake, at, func() {
		s.of.ledger.fault(s.Node.Name)
		s.Node.Net.Stall()
	})
	if !injected {
		return nil
	}
	s.Happened(history.Stalls, at.found(there))
	k := s.of.scenario.Knobs
	s.Pause(ctx, k.HeartbeatTimeout, k.HeartbeatTimeout+2*k.RescueDelay+time.Second) // also beyond the end of intake
	s.Node.Net.Release()
	s.Over(history.Stalls)
	return nil
}

// hole makes half of the worker's connections die in silence. The server hears of
// their end after a while, the worker must find out by itself.
func (s *slot) hole(_, intake context.Context, at point) error {
	swallowed := 0
	if _, there := s.inject(intake, at, func() {
		s.of.ledger.fault(s.Node.Name)
		s.Node.unable.Store(true)
		swallowed = s.Node.Net.Swallow()
	}); swallowed > 0 {
		s.Tally.Add(history.Swallowed, swallowed)
		s.History.Add(s.Node.Name, "", history.FaultInjected, history.Injection{Fault: history.Swallowed, Where: fmt.Sprintf("%d of them, %s", swallowed, at.found(there))})
	}
	s.Pause(intake, 500*time.Millisecond, 2*time.Second)
	s.Node.Net.Drain()
	return nil
}

// restart is a deployment: a clean stop, and another worker of the next version.
func (s *slot) restart(ctx, intake context.Context, at point) error {
	if injected, _ := s.inject(intake, at, s.Node.worker.Stop); !injected {
		return nil
	}
	s.Happened(stage.WorkersRestarted, "")
	s.of.version.Add(1)
	return s.Replace(ctx, intake, history.ExitStopped, 0)
}
