package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

// jobWorkerFaults end a worker of jobs, or break what lies between it and the
// server.
var jobWorkerFaults = []jobFaultRow{
	{
		Row: fault.Row{
			Name: "crash", Does: "ends a worker at once: while handlers run, at a claim, as it stores the end of runs, or at a COMMIT",
			Counts:  []history.Fault{history.Crashes, history.CommitCrashes, history.IdleCrashes},
			Reaches: []oracle.Condition{oracle.LostWorkers, oracle.WorkersLostAtCommit},
		},
		worker: atJob((*jobSlot).crash, inRun, inRun, afterClaim, afterEnd, beforeJobsTx, afterJobsTx),
	},
	{
		Row: fault.Row{
			Name: "vanish", Does: "ends a worker and leaves its connections half open",
			Counts:  []history.Fault{machinesVanished},
			Reaches: []oracle.Condition{oracle.LostWorkers},
		},
		worker: atJob((*jobSlot).vanish, inRun, inRun, inRun),
	},
	{
		Row: fault.Row{
			Name: "cut", Does: "resets all connections of a worker, before a claim, the end of a run or a COMMIT, or after it, so that the answer is lost",
			Counts:  []history.Fault{history.Cuts},
			Reaches: []oracle.Condition{oracle.CutClaims, oracle.CutEnds, oracle.WorkersLostAtCommit},
		},
		worker: atJob((*jobSlot).cut, beforeClaim, beforeClaim, afterClaim, afterClaim, beforeEnd, afterEnd, beforeJobsTx, afterJobsTx),
	},
	{
		Row: fault.Row{
			Name: "slow", Does: "takes the server far from a worker for a while, so that answers take up to 0.1s",
			Counts: []history.Fault{workersSlowed},
		},
		worker: atJob((*jobSlot).slow, inRun, inRun, inRun),
	},
	{
		Row: fault.Row{
			Name: "stall", Does: "lets a worker hang past its time-outs, and come back as a zombie",
			Counts:  []history.Fault{history.Stalls},
			Reaches: []oracle.Condition{oracle.Zombies, oracle.LostWorkers},
		},
		worker: atJob((*jobSlot).stall, inRun, inRun, beforeEnd, beforeJobsTx),
	},
	{
		Row: fault.Row{
			Name: "hole", Does: "lets connections of a worker die in silence: nothing comes, and no error",
			Counts: []history.Fault{history.Swallowed},
		},
		seldom: true,
		worker: atJob((*jobSlot).hole, inRun, inRun, inRun, inRun),
	},
	{
		Row: fault.Row{
			Name: "restart", Does: "stops a worker cleanly and starts another",
			Counts:  []history.Fault{workersRestarted},
			Reaches: []oracle.Condition{oracle.StoppedWorkers, oracle.Deployments},
		},
		worker: atJob((*jobSlot).restart, inRun, inRun, inRun),
	},
}

// crash ends the process at once: no goodbye.
func (s *jobSlot) crash(ctx, intake context.Context, at jobPoint) error {
	injected, there := s.inject(intake, at, func() { s.lose((*network).crash) })
	if !injected {
		return nil
	}
	s.countCrash(at, there)
	return s.replace(ctx, intake, history.ExitCrashed, 0)
}

// lose takes down that the worker is gone, and ends it.
func (s *jobSlot) lose(how func(*network)) {
	s.of.book.crash(s.node.name)
	s.node.crash(how)
}

func (s *jobSlot) countCrash(at jobPoint, there bool) {
	switch {
	case !there:
		s.happened(history.IdleCrashes, "")
	case at.sends == nil:
		s.happened(history.Crashes, at.where)
	default:
		s.happened(history.CommitCrashes, at.where)
	}
}

// vanish takes the whole machine away: the server does not even see the connections
// end.
func (s *jobSlot) vanish(ctx, intake context.Context, at jobPoint) error {
	injected, there := s.inject(intake, at, func() { s.lose((*network).vanish) })
	if !injected {
		return nil
	}
	s.countCrash(at, there)
	s.happened(machinesVanished, "")
	return s.replace(ctx, intake, history.ExitCrashed, lingering)
}

// cut resets the worker's connections. It is to recover by itself.
func (s *jobSlot) cut(_, intake context.Context, at jobPoint) error {
	if injected, there := s.inject(intake, at, func() {
		s.of.book.fault(s.node.name)
		s.node.net.cut()
	}); injected {
		s.happened(history.Cuts, at.found(there))
	}
	return nil
}

func (s *jobSlot) slow(_, intake context.Context, _ jobPoint) error { return s.takeFar(intake) }

// stall makes the worker a zombie: others take it for dead, run its jobs, and it
// goes on where it was. Some stalls are over before that. Not all workers stall at
// once: somebody must take the jobs.
func (s *jobSlot) stall(ctx, intake context.Context, at jobPoint) error {
	select {
	case s.of.stalls <- struct{}{}:
		defer func() { <-s.of.stalls }()
	default:
		return nil
	}
	injected, there := s.inject(intake, at, func() {
		s.of.book.fault(s.node.name)
		s.node.net.stall()
	})
	if !injected {
		return nil
	}
	s.happened(history.Stalls, at.found(there))
	k := s.of.scenario.Jobs
	s.pause(ctx, k.HeartbeatTimeout, k.HeartbeatTimeout+2*k.RescueDelay+time.Second) // also beyond the end of intake
	s.node.net.release()
	s.over(history.Stalls)
	return nil
}

// hole makes half of the worker's connections die in silence. The server hears of
// their end after a while, the worker must find out by itself.
func (s *jobSlot) hole(_, intake context.Context, at jobPoint) error {
	swallowed := 0
	if _, there := s.inject(intake, at, func() {
		s.of.book.fault(s.node.name)
		s.node.unable.Store(true)
		swallowed = s.node.net.swallow()
	}); swallowed > 0 {
		s.tally.add(history.Swallowed, swallowed)
		s.history.Add(s.node.name, "", history.FaultInjected, history.Injection{Fault: history.Swallowed, Where: fmt.Sprintf("%d of them, %s", swallowed, at.found(there))})
	}
	s.pause(intake, 500*time.Millisecond, 2*time.Second)
	s.node.net.drain()
	return nil
}

// restart is a deployment: a clean stop, and another worker of the next version.
func (s *jobSlot) restart(ctx, intake context.Context, at jobPoint) error {
	if injected, _ := s.inject(intake, at, s.node.worker.Stop); !injected {
		return nil
	}
	s.happened(workersRestarted, "")
	s.of.version.Add(1)
	return s.replace(ctx, intake, history.ExitStopped, 0)
}
