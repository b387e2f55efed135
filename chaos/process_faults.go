//go:build unix

package chaos

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

// processRows are the faults of worker processes.
var processRows = []faultRow{
	{
		Row: fault.Row{
			Name: "kill", Does: "SIGKILL for a worker process at a random moment; another takes its place",
			Counts: []history.Fault{history.Killed},
		},
		process: (*slot).kill,
	},
	{
		Row: fault.Row{
			Name: "stop", Does: "SIGSTOP for a worker process past its time-outs, then SIGCONT: a zombie",
			Counts: []history.Fault{history.Stopped},
		},
		process: (*slot).suspend,
	},
	{
		Row: fault.Row{
			Name: "hole", Does: "half of a worker process's connections die in silence: they swallow what both sides send, without an error",
			Counts: []history.Fault{history.Swallowed},
		},
		process: (*slot).hole,
	},
}

// contractRows are the fault of handlers that are given a transaction.
var contractRows = []faultRow{
	{
		Row: fault.Row{
			Name: "contract", Does: "a handler of a worker process commits, rolls back or chains its transaction; the process ends with the error for that, and another takes its place",
			Counts:  []history.Fault{history.Breaches},
			Reaches: []oracle.Condition{oracle.BrokenContracts},
		},
		process: (*slot).breakRule,
	},
}

// deployRows replace worker processes as a deployment does.
var deployRows = []faultRow{
	{
		Row: fault.Row{
			Name: "deploy", Does: "SIGTERM for every worker process, one after the other, while its handlers run; others take their places",
			Counts:  []history.Fault{deployed},
			Reaches: []oracle.Condition{oracle.Deployments},
		},
		process: (*slot).deploy,
	},
}

const deployed history.Fault = "worker processes told to end, and replaced"

// leaderRows end the process that leads.
var leaderRows = []faultRow{
	{
		Row: fault.Row{
			Name: killLeader, Does: "SIGKILL for the worker process that leads, every six seconds; another takes its place",
			Counts: []history.Fault{history.LeadersKilled},
		},
	},
}

const killLeader = "kill-leader"

// killLeaders kills the process that leads until intake ends. Its slot finds it dead.
func (p *processes) killLeaders(intake context.Context) {
	for backoff.Sleep(intake, time.Duration(float64(6*time.Second)/p.faults[killLeader])) {
		for _, s := range p.slots {
			if x := s.current.Load(); x != nil && x.leads.Load() && !x.ended() {
				x.killed.Store(true)
				x.signal(syscall.SIGKILL)
				p.env.Lose(x.name)
				p.happened(x.name, history.LeadersKilled, "")
			}
		}
	}
}

// kill ends the process at once.
func (s *slot) kill(ctx, intake context.Context) error {
	if s.process.broke.Load() {
		return nil // nobody else could mend what its handler did
	}
	s.process.signal(syscall.SIGKILL)
	s.env.Lose(s.process.name)
	s.happened(s.process.name, history.Killed, "")
	s.cleanUp(ctx, history.ExitCrashed, s.bound(recovery))
	s.pause(intake, 0, s.scenario.Outage())
	return s.start()
}

// suspend makes the process a zombie: others take it for dead, and it goes on
// where it was. It stays stopped for its time, also when the run's load has ended: woken
// sooner, it is none.
func (s *slot) suspend(ctx, _ context.Context) error {
	select {
	case s.suspended <- struct{}{}:
		defer func() { <-s.suspended }()
	default:
		return nil
	}
	s.process.fault(s.env)
	s.process.signal(syscall.SIGSTOP)
	s.happened(s.process.name, history.Stopped, "")
	low, high := s.scenario.Suspension()
	s.pause(ctx, low, high)
	s.process.signal(syscall.SIGCONT)
	s.env.History.Add(s.process.name, "", history.FaultOver, history.Injection{Fault: history.Stopped})
	return nil
}

// hole makes half of the process's connections die in silence. The worker is to
// find out by itself.
func (s *slot) hole(context.Context, context.Context) error {
	s.process.fault(s.env)
	n := s.link.Load().Swallow()
	for range n {
		s.env.Count(history.Swallowed)
	}
	if n > 0 {
		s.env.History.Add(s.process.name, "", history.FaultInjected, history.Injection{Fault: history.Swallowed, Where: fmt.Sprintf("%d of them", n)})
	}
	return nil
}

// breakRule lets a handler of the process end its transaction. The worker is to
// repair what that did, and to end with the error that says so. No copy of the
// server is made meanwhile: it would have what the handler did, and not the
// repair.
func (s *slot) breakRule(ctx, intake context.Context) error {
	if s.process.broke.Load() {
		return nil // once in a life
	}
	s.copying.RLock()
	defer s.copying.RUnlock()
	answered, cancel := context.WithTimeout(ctx, s.bound(recovery))
	defer cancel()
	if s.process.breakRule(answered) {
		s.cleanUp(ctx, history.ExitBroke, s.bound(recovery))
		s.pause(intake, 0, s.scenario.Outage())
		return s.start()
	}
	if s.process.broke.Load() { // perhaps it did, and the answer was lost
		s.process.ends(ctx, s.bound(15*time.Second))
	}
	return nil
}

// deploy has every slot replace its process, this one first.
func (s *slot) deploy(ctx, _ context.Context) error {
	s.latest.Add(1)
	return s.update(ctx)
}

// update replaces the process by one of the latest version. No two are replaced at
// once.
func (s *slot) update(ctx context.Context) error {
	s.updating.Lock()
	defer s.updating.Unlock()
	if !s.began(ctx) {
		return nil // it is replaced anyway
	}
	s.process.signal(syscall.SIGTERM)
	s.happened(s.process.name, deployed, "")
	s.cleanUp(ctx, history.ExitStopped, s.scenario.EndBound(s.env.Bounds))
	if err := s.start(); err != nil {
		return err
	}
	s.began(ctx)
	return nil
}

// began waits until the worker runs, and reports whether it does.
func (s *slot) began(ctx context.Context) bool {
	for !s.process.began.Load() {
		if s.process.ended() || !backoff.Sleep(ctx, 20*time.Millisecond) {
			return false
		}
	}
	return !s.process.ended()
}
