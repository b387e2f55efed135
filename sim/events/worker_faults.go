package events

import (
	"context"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/network"
	"github.com/pgfrontier/worker/sim/oracle"
	"github.com/pgfrontier/worker/sim/stage"
)

const (
	consumersMoved history.Fault = "consumers moved away in a batch"
	rescalesBroken history.Fault = "splits and merges broken off"
)

// workerFaults end a worker, break what lies between it and the server, or take
// its consumers away.
var workerFaults = []faultRow{
	{Row: fault.New("crash", "ends a worker at once, in the middle of a batch or at its COMMIT",
		history.Crashes, history.CommitCrashes, history.IdleCrashes).Reaching(oracle.WorkersLostAtCommit),
		worker: at((*Slot).crash, afterGuard, afterEffect, beforeCommit, afterCommit)},
	{Row: fault.New("vanish", "ends a worker and leaves its connections half open",
		stage.MachinesVanished).Reaching(oracle.StolenConsumers).Needing(fault.Noticing),
		worker: at((*Slot).vanish, afterEffect)},
	{Row: fault.New("cut", "resets all connections of a worker, before a statement or a COMMIT, or after it",
		history.Cuts).Reaching(oracle.CutConnections, oracle.BrokenBatches, oracle.WorkersLostAtCommit),
		worker: at((*Slot).cut, beforeStatement, afterStatement, beforeCommit, afterCommit)},
	{Row: fault.New("halfway", "ends a worker, or resets its connections, before or after any statement of a split or a merge, or its COMMIT",
		rescalesBroken).Reaching(oracle.Rescaled, oracle.CutConnections),
		worker: at((*Slot).breakOff, afterGuard, afterGuard)},
	{Row: fault.New("slow", "takes the server far from a worker for a while, so that answers take up to 0.1s", stage.WorkersSlowed),
		worker: at((*Slot).slow, afterGuard)},
	{Row: fault.New("stall", "lets a worker hang past its time-outs, and come back as a zombie",
		history.Stalls).Reaching(oracle.Zombies, oracle.MovedConsumers, oracle.StolenConsumers),
		worker: at((*Slot).stall, afterGuard, afterEffect)},
	{Row: fault.New("hole", "lets connections of a worker die in silence: nothing comes, and no error", history.Swallowed).Needing(fault.Noticing),
		worker: at((*Slot).hole, afterGuard, afterEffect)},
	{Row: fault.New("restart", "stops a worker cleanly and starts another", stage.WorkersRestarted), worker: at((*Slot).restart, afterEffect)},
	{Row: fault.New("move", "assigns a consumer to another worker in the middle of a batch",
		consumersMoved).Reaching(oracle.MovedConsumers, oracle.StolenConsumers),
		handler: (*shared).moveAway},
}

// crash ends the process at once, without a clean stop.
func (s *Slot) crash(ctx, intake context.Context, at point) error {
	return s.end(ctx, intake, at, (*network.Network).Crash, 0)
}

// vanish takes the whole machine away: the server does not even see the
// connections end.
func (s *Slot) vanish(ctx, intake context.Context, at point) error {
	return s.end(ctx, intake, at, (*network.Network).Vanish, stage.Lingering, stage.MachinesVanished)
}

// end ends the process by how, and starts another. It counts a crash, and each of more.
func (s *Slot) end(ctx, intake context.Context, at point, how func(*network.Network), linger time.Duration, more ...history.Fault) error {
	n, crashed := s.Node, false
	_, inBatch := s.inject(intake, at, func() { crashed = n.crash(how) })
	if !crashed {
		return nil
	}
	s.Crashed(at.String(), inBatch, at == beforeCommit || at == afterCommit, more...)
	return s.Replace(ctx, intake, history.ExitCrashed, linger)
}

// breakOff demands another number of partitions, and ends the worker or cuts it off in the middle
// of the split or merge, if there is one.
func (s *Slot) breakOff(ctx, intake context.Context, at point) error {
	if err := s.rescale(ctx, intake, at); err != nil {
		return err
	}
	n, crashed := s.Node, false
	statement, answered, ends := s.Dice.IntN(rescaleStatements), fault.Chance(s.Dice, 0.5), fault.Chance(s.Dice, 0.5)
	p := network.NewFailpoint(func() {
		if !ends {
			n.Net.Cut()
		} else {
			crashed = n.crash((*network.Network).Crash)
		}
	})
	n.Net.SetTrap(s.scenario.locksLayout, network.Nth(statement), answered, p.Fire)
	if hit := s.AwaitHit(intake, p); !hit {
		n.Net.ClearTrap()
		return nil
	}
	where := fmt.Sprintf("%s statement %d of a split or a merge", map[bool]string{false: "before", true: "after"}[answered], statement+1)
	s.Happened(rescalesBroken, where)
	if !crashed {
		return nil
	}
	s.Happened(history.Crashes, where)
	return s.Replace(ctx, intake, history.ExitCrashed, 0)
}

// rescaleStatements is about how many statements a merge has, with its COMMIT.
const rescaleStatements = 10

// cut resets the worker's connections. The worker must recover by itself.
func (s *Slot) cut(_, intake context.Context, at point) error {
	if injected, inBatch := s.inject(intake, at, s.Node.Net.Cut); injected {
		s.Happened(history.Cuts, whereabouts(at, inBatch))
	}
	return nil
}

func (s *Slot) slow(_, intake context.Context, _ point) error { return s.TakeFar(intake) }

// stall makes the worker a zombie: others take it for dead, and it goes on
// where it was.
func (s *Slot) stall(_, intake context.Context, at point) error {
	injected, inBatch := s.inject(intake, at, s.Node.Net.Stall)
	if !injected {
		return nil
	}
	s.Happened(history.Stalls, whereabouts(at, inBatch))
	s.Pause(intake, 200*time.Millisecond, s.scenario.Knobs.HeartbeatTimeout*8/5)
	s.Node.Net.Release()
	s.Over(history.Stalls)
	return nil
}

// hole makes half of the worker's connections die in silence. It is to find out
// by itself.
func (s *Slot) hole(_, intake context.Context, at point) error {
	swallowed := 0
	if _, inBatch := s.inject(intake, at, func() { swallowed = s.Node.Net.Swallow() }); swallowed > 0 {
		s.Tally.Add(history.Swallowed, swallowed)
		s.History.Add(s.Node.Name, "", history.FaultInjected, history.Injection{Fault: history.Swallowed, Where: fmt.Sprintf("%d of them, %s", swallowed, whereabouts(at, inBatch))})
	}
	return nil
}

// restart is a deployment: a clean stop, and another worker.
func (s *Slot) restart(ctx, intake context.Context, _ point) error {
	s.Node.worker.Stop()
	s.Happened(stage.WorkersRestarted, "")
	return s.Replace(ctx, intake, history.ExitStopped, 0)
}

// moveAway now and then takes the consumer away from its worker in the middle of a batch. The
// handler then lasts long enough for the next owner to arrive.
func (s *shared) moveAway(ctx context.Context, b *LedgerConsumer, _ Delivered, intensity float64) (bool, error) {
	now := time.Now()
	if now.Before(b.nextMove) {
		return false, nil
	}
	if !b.nextMove.IsZero() && s.assignToAnother(ctx, b) {
		backoff.Sleep(ctx, fault.Between(b.Dice, 50*time.Millisecond, 500*time.Millisecond))
	}
	b.nextMove = now.Add(time.Duration((0.5 + b.Dice.Float64()) * float64(b.node.knobs.MoveEvery) / intensity))
	return false, nil
}

// assignToAnother gives a consumer to another worker, as a second leader or a
// careless operator would, and reports whether it did. The leader will move it
// back.
func (s *shared) assignToAnother(ctx context.Context, b *LedgerConsumer) bool {
	if s.over() {
		return false
	}
	var others []*node
	for _, p := range s.places {
		if n := p.Current(); n != nil && n != b.node {
			others = append(others, n)
		}
	}
	if len(others) == 0 {
		return false
	}
	to := others[b.Dice.IntN(len(others))]
	_, err := s.on.DB.ExecContext(ctx, `UPDATE consumer_assignments SET worker_id = $2::uuid, updated_at = clock_timestamp() WHERE consumer_name = $1::text`, b.unit, to.id())
	if err != nil {
		return false // the batch's time is over
	}
	s.Count(consumersMoved)
	b.record(history.FaultInjected, history.Injection{Fault: consumersMoved, Where: "to " + to.Name})
	return true
}

const (
	notificationsLost    history.Fault = "notifications lost"
	notificationsDelayed history.Fault = "notifications delayed"
)

// notifyLost is also read when the faults are over: what listens must also
// poll.
const notifyLost = "notify-lost"

// notificationFaults keep notifications from a worker.
var notificationFaults = []faultRow{
	{Row: fault.New(notifyLost, "loses the notifications to a worker for a while", notificationsLost).Needing(fault.Readable),
		listens: true, worker: at(filtering(notificationsLost, network.Dropping), afterGuard)},
	{Row: fault.New("notify-late", "delays the notifications to a worker", notificationsDelayed).Needing(fault.Readable),
		listens: true, worker: at(filtering(notificationsDelayed, network.Holding), afterGuard)},
}

// filtering changes the mode of the filter before a worker's listener for a
// while.
func filtering(f history.Fault, m network.Mode) func(s *Slot, ctx, intake context.Context, at point) error {
	return func(s *Slot, _, intake context.Context, _ point) error {
		filter := &s.Node.Relay.Filter
		filter.Change(m)
		s.Pause(intake, 200*time.Millisecond, 1500*time.Millisecond)
		if n := filter.Change(network.Passing); n > 0 {
			s.Tally.Add(f, n)
			s.History.Add(s.Node.Name, "", history.FaultInjected, history.Injection{Fault: f, Where: fmt.Sprintf("%d until now", n)})
		}
		return nil
	}
}
