package events

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/stage"
)

const (
	slowStops   history.Fault = "workers stopped while a handler took its time"
	slowBatches history.Fault = "batches that took about as long as they may"
)

// mannerFaults are manners of handlers, callers, clocks and other programs.
var mannerFaults = []faultRow{
	{Row: fault.New("slow-stop", "stops a worker cleanly while a handler takes its time, and starts another", slowStops),
		worker: at((*Slot).stopSlowly, afterEffect, afterEffect)},
	{Row: fault.New("slow-batch", "lets handlers take about as long over a batch as it may take", slowBatches), handler: (*shared).takeTime},
	{Row: stage.ClockRow, worker: at((*Slot).setClock, afterGuard, afterEffect)},
	{Row: stage.LeftRow,
		worker: at(func(s *Slot, ctx, _ context.Context, _ point) error { s.LeaveTransaction(ctx); return nil }, afterGuard, afterGuard)},
	{Row: stage.SnapshotRow,
		worker: at(func(s *Slot, ctx, intake context.Context, _ point) error { return s.HoldSnapshot(ctx, intake) }, afterGuard)},
	{Row: fault.New("odd-time", "appends events with an infinite or far time", stage.OddTimes),
		writer: []operation{{weight: 3, ending: commit, run: (*writer).appendOddly}}},
}

// stopSlowly is a deployment in the middle of a batch that takes part of its time.
func (s *Slot) stopSlowly(ctx, intake context.Context, at point) error {
	n, d := s.Node, fault.Between(s.Dice, 100*time.Millisecond, s.scenario.Knobs.BatchTimeout/2)
	injected, inBatch := s.inject(intake, at, func() {
		n.worker.Stop()
		backoff.Sleep(ctx, d)
	})
	if !injected {
		return nil
	}
	if !inBatch {
		s.Happened(stage.WorkersRestarted, "")
	} else {
		s.Happened(slowStops, fmt.Sprintf("for %v", d))
	}
	return s.Replace(ctx, intake, history.ExitStopped, 0)
}

// takeTime makes a handler slow in some batches, by about the time-out of a batch: at the first
// event, or spread over the events of a full batch.
func (s *shared) takeTime(ctx context.Context, b *LedgerConsumer, d Delivered, intensity float64) (bool, error) {
	const often, nearest, furthest = 0.01, 0.6, 1.3 // of the batches; of the time-out
	if d.first {
		b.slow = 0
		if !s.over() && fault.Chance(b.Dice, often*intensity) {
			d := time.Duration((nearest + b.Dice.Float64()*(furthest-nearest)) * float64(s.scenario.Knobs.BatchTimeout))
			b.injected(slowBatches, fmt.Sprintf("%v of %v", d, s.scenario.Knobs.BatchTimeout))
			if fault.Chance(b.Dice, 0.5) {
				b.slow = d / time.Duration(s.scenario.Knobs.BatchSize)
			} else if !backoff.Sleep(ctx, d) {
				return true, context.Cause(ctx)
			}
		}
	}
	if b.slow > 0 && !backoff.Sleep(ctx, b.slow) {
		return true, context.Cause(ctx)
	}
	return false, nil
}

// setClock makes all times that workers have written an hour older or newer, as if the server's
// clock had been set. Sometimes a worker crashes meanwhile.
func (s *Slot) setClock(ctx, intake context.Context, at point) error {
	if err := s.ShiftTimes(ctx, "worker_nodes", "worker_leader_election"); err != nil || !fault.Chance(s.Dice, 0.5) {
		return err
	}
	return s.crash(ctx, intake, at)
}

// appendOddly appends events as another program does that writes their times itself.
func (w *writer) appendOddly(ctx, intake context.Context, a *attempt) error {
	before := len(a.drawn)
	if err := w.appendOnce(ctx, intake, a); err != nil {
		return err
	}
	positions := history.PositionsOf(a.drawn[before:])
	return a.tx.Exec(ctx, `UPDATE events SET created_at = $2::timestamptz WHERE global_position = ANY ($1::bigint[])`, positions, fault.OneOf(w.dice, stage.Times...))
}

const narrowBuilds history.Fault = "workers of a build that selects fewer types"

const narrowBuildsOn = "builds"

// buildFaults are what differs between the workers of one deployment.
var buildFaults = []faultRow{
	{Row: fault.New(narrowBuildsOn, "lets half of the workers run a build of a consumer that selects fewer types", narrowBuilds),
		build: func(s *Scenario, _ *rand.Rand) { s.Scope = narrow(s.Scope) }},
	{Row: stage.SettingsRow, build: func(s *Scenario, dice *rand.Rand) { s.settings = stage.DrawSettings(dice) }},
	{Row: stage.TimeoutsRow, build: func(s *Scenario, dice *rand.Rand) {
		stage.ScaleTimeouts(dice, &s.Knobs.HeartbeatInterval, &s.Knobs.HeartbeatTimeout)
	}},
}

// grown is a consumer for which some builds select a type that others do not.
var grown = history.Scope{Name: "grown-1", Types: []string{"order", "cart"}, Sometimes: []string{"account"}}

// narrow leaves out the types that only some builds select.
func narrow(all []history.Scope) []history.Scope {
	all = slices.Clone(all)
	for i := range all {
		all[i].Sometimes = nil
	}
	return all
}
