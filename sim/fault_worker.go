package sim

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

const (
	machinesVanished history.Fault = "of these with connections left half open"
	workersSlowed    history.Fault = "live workers far from the server for a while"
	workersRestarted history.Fault = "workers stopped and started"
	consumersMoved   history.Fault = "consumers moved away in a batch"
	rescalesBroken   history.Fault = "splits and merges broken off"
)

// workerFaults end a worker, break what lies between it and the server, or take
// its consumers away.
var workerFaults = []faultRow{
	{
		Row: fault.Row{
			Name: "crash", Does: "ends a worker at once, in the middle of a batch or at its COMMIT",
			Counts:  []history.Fault{history.Crashes, history.CommitCrashes, history.IdleCrashes},
			Reaches: []oracle.Condition{oracle.WorkersLostAtCommit},
		},
		worker: at((*slot).crash, afterGuard, afterEffect, beforeCommit, afterCommit),
	},
	{
		Row: fault.Row{
			Name: "vanish", Does: "ends a worker and leaves its connections half open",
			Counts:  []history.Fault{machinesVanished},
			Reaches: []oracle.Condition{oracle.StolenConsumers},
		},
		needs:  []*requirement{noticing},
		worker: at((*slot).vanish, afterEffect),
	},
	{
		Row: fault.Row{
			Name: "cut", Does: "resets all connections of a worker, before a statement or a COMMIT, or after it",
			Counts:  []history.Fault{history.Cuts},
			Reaches: []oracle.Condition{oracle.CutConnections, oracle.BrokenBatches, oracle.WorkersLostAtCommit},
		},
		worker: at((*slot).cut, beforeStatement, afterStatement, beforeCommit, afterCommit),
	},
	{
		Row: fault.Row{
			Name: "halfway", Does: "ends a worker, or resets its connections, before or after any statement of a split or a merge, or its COMMIT",
			Counts:  []history.Fault{rescalesBroken},
			Reaches: []oracle.Condition{oracle.Rescaled, oracle.CutConnections},
		},
		worker: at((*slot).breakOff, afterGuard, afterGuard),
	},
	{
		Row: fault.Row{
			Name: "slow", Does: "takes the server far from a worker for a while, so that answers take up to 0.1s",
			Counts: []history.Fault{workersSlowed},
		},
		worker: at((*slot).slow, afterGuard),
	},
	{
		Row: fault.Row{
			Name: "stall", Does: "lets a worker hang past its time-outs, and come back as a zombie",
			Counts:  []history.Fault{history.Stalls},
			Reaches: []oracle.Condition{oracle.Zombies, oracle.MovedConsumers, oracle.StolenConsumers},
		},
		worker: at((*slot).stall, afterGuard, afterEffect),
	},
	{
		Row: fault.Row{
			Name: "hole", Does: "lets connections of a worker die in silence: nothing comes, and no error",
			Counts: []history.Fault{history.Swallowed},
		},
		needs:  []*requirement{noticing},
		worker: at((*slot).hole, afterGuard, afterEffect),
	},
	{
		Row: fault.Row{
			Name: "restart", Does: "stops a worker cleanly and starts another",
			Counts: []history.Fault{workersRestarted},
		},
		worker: at((*slot).restart, afterEffect),
	},
	{
		Row: fault.Row{
			Name: "move", Does: "assigns a consumer to another worker in the middle of a batch",
			Counts:  []history.Fault{consumersMoved},
			Reaches: []oracle.Condition{oracle.MovedConsumers, oracle.StolenConsumers},
		},
		handler: (*simulation).moveAway,
	},
}

// crash ends the process at once: no goodbye.
func (s *slot) crash(ctx, intake context.Context, at point) error {
	n, crashed := s.node, false
	_, inBatch := s.inject(intake, at, func() {
		if crashed = n.fate.CompareAndSwap(0, toCrash); crashed {
			n.net.crash()
			n.cancel()
		}
	})
	if !crashed {
		return nil
	}
	s.countCrash(at, inBatch)
	return s.replace(ctx, intake, history.ExitCrashed, 0)
}

func (s *slot) countCrash(at point, inBatch bool) {
	switch {
	case !inBatch:
		s.happened(history.IdleCrashes, "")
	case at == beforeCommit || at == afterCommit:
		s.happened(history.CommitCrashes, at.String())
	default:
		s.happened(history.Crashes, at.String())
	}
}

// lingering is how long the connections of a machine that vanished stay.
const lingering = 4 * time.Second

// vanish takes the whole machine away: the server does not even see the
// connections end.
func (s *slot) vanish(ctx, intake context.Context, at point) error {
	n, crashed := s.node, false
	_, inBatch := s.inject(intake, at, func() {
		if crashed = n.fate.CompareAndSwap(0, toCrash); crashed {
			n.net.vanish()
			n.cancel()
		}
	})
	if !crashed {
		return nil
	}
	s.countCrash(at, inBatch)
	s.happened(machinesVanished, "")
	return s.replace(ctx, intake, history.ExitCrashed, lingering)
}

// breakOff wants another number of partitions, and ends the worker or cuts it off in the
// middle of a split or a merge, if it comes to one.
func (s *slot) breakOff(ctx, intake context.Context, at point) error {
	if err := s.rescale(ctx, intake, at); err != nil {
		return err
	}
	n, crashed := s.node, false
	statement, answered, ends := s.dice.IntN(rescaleStatements), chance(s.dice, 0.5), chance(s.dice, 0.5)
	p := &failpoint{hit: make(chan struct{}), inject: func() {
		if !ends {
			n.net.cut()
		} else if crashed = n.fate.CompareAndSwap(0, toCrash); crashed {
			n.net.crash()
			n.cancel()
		}
	}}
	n.net.trap.Store(&trap{s.scenario.locksLayout, nth(statement), answered, p.fire})
	if hit := s.awaitHit(intake, p); !hit {
		n.net.trap.Store(nil)
		return nil
	}
	where := fmt.Sprintf("%s statement %d of a split or a merge", map[bool]string{false: "before", true: "after"}[answered], statement+1)
	s.happened(rescalesBroken, where)
	if !crashed {
		return nil
	}
	s.happened(history.Crashes, where)
	return s.replace(ctx, intake, history.ExitCrashed, 0)
}

// rescaleStatements is about how many statements a merge has, with its COMMIT.
const rescaleStatements = 10

// locksLayout recognises the statement with which a split or a merge begins, by its
// parameters.
func (s Scenario) locksLayout(b []byte) bool {
	return executes(b) && bytes.Contains(b, []byte("15000")) && slices.ContainsFunc(s.Scope, func(c history.Scope) bool {
		return c.Partitioned && bytes.Contains(b, []byte(c.Name))
	})
}

// cut resets the worker's connections. It is to recover by itself.
func (s *slot) cut(_, intake context.Context, at point) error {
	if injected, inBatch := s.inject(intake, at, s.node.net.cut); injected {
		s.happened(history.Cuts, whereabouts(at, inBatch))
	}
	return nil
}

func (s *slot) slow(_, intake context.Context, _ point) error { return s.takeFar(intake) }

// takeFar takes the server far away for a while.
func (s *place[P]) takeFar(intake context.Context) error {
	const nearest, furthest = 4 * time.Millisecond, 80 * time.Millisecond
	far := nearest + time.Duration(s.dice.Int64N(int64(furthest-nearest)))
	net := s.node.itself().net
	net.remove(far)
	s.happened(workersSlowed, fmt.Sprintf("answers take %v", far.Round(time.Millisecond)))
	s.pause(intake, 500*time.Millisecond, 1500*time.Millisecond)
	net.remove(0)
	s.over(workersSlowed)
	return nil
}

// stall makes the worker a zombie: others take it for dead, and it goes on
// where it was.
func (s *slot) stall(_, intake context.Context, at point) error {
	injected, inBatch := s.inject(intake, at, s.node.net.stall)
	if !injected {
		return nil
	}
	s.happened(history.Stalls, whereabouts(at, inBatch))
	s.pause(intake, 200*time.Millisecond, s.scenario.Knobs.HeartbeatTimeout*8/5)
	s.node.net.release()
	s.over(history.Stalls)
	return nil
}

// hole makes half of the worker's connections die in silence. It is to find out
// by itself.
func (s *slot) hole(_, intake context.Context, at point) error {
	swallowed := 0
	if _, inBatch := s.inject(intake, at, func() { swallowed = s.node.net.swallow() }); swallowed > 0 {
		s.tally.add(history.Swallowed, swallowed)
		s.history.Add(s.node.name, "", history.FaultInjected, history.Injection{Fault: history.Swallowed, Where: fmt.Sprintf("%d of them, %s", swallowed, whereabouts(at, inBatch))})
	}
	return nil
}

// restart is a deployment: a clean stop, and another worker.
func (s *slot) restart(ctx, intake context.Context, _ point) error {
	s.node.worker.Stop()
	s.happened(workersRestarted, "")
	return s.replace(ctx, intake, history.ExitStopped, 0)
}

// moveAway now and then takes the handler's consumer away from its worker in the
// middle of a batch, and takes long enough over it for the next owner to arrive.
func (s *simulation) moveAway(ctx context.Context, b *bookkeeper, _ delivered, intensity float64) (bool, error) {
	now := time.Now()
	if now.Before(b.nextMove) {
		return false, nil
	}
	if !b.nextMove.IsZero() && s.assignToAnother(ctx, b) {
		backoff.Sleep(ctx, between(b.dice, 50*time.Millisecond, 500*time.Millisecond))
	}
	b.nextMove = now.Add(time.Duration((0.5 + b.dice.Float64()) * float64(b.node.knobs.MoveEvery) / intensity))
	return false, nil
}

// assignToAnother gives a consumer to another worker, as a second leader or a
// careless operator would, and reports whether it did. The leader will move it
// back.
func (s *simulation) assignToAnother(ctx context.Context, b *bookkeeper) bool {
	if s.over() {
		return false
	}
	var others []*node
	for _, slot := range s.slots {
		if n := slot.current(); n != nil && n != b.node {
			others = append(others, n)
		}
	}
	if len(others) == 0 {
		return false
	}
	to := others[b.dice.IntN(len(others))]
	_, err := s.on.db.ExecContext(ctx, `UPDATE consumer_assignments SET worker_id = $2::uuid, updated_at = clock_timestamp() WHERE consumer_name = $1::text`, b.unit, to.id())
	if err != nil {
		return false // the batch's time is over
	}
	s.count(consumersMoved)
	b.record(history.FaultInjected, history.Injection{Fault: consumersMoved, Where: "to " + to.name})
	return true
}
