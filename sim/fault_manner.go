package sim

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
)

const (
	slowStops        history.Fault = "workers stopped while a handler took its time"
	slowBatches      history.Fault = "batches that took about as long as they may"
	clocksSet        history.Fault = "times that the server's clock was set back or forward"
	transactionsLeft history.Fault = "transactions left open in a worker's pool"
	snapshotsHeld    history.Fault = "snapshots held"
	oddTimes         history.Fault = "rows with an infinite or far time"
)

// mannerFaults are manners of handlers, callers, clocks and other programs.
var mannerFaults = []faultRow{
	{
		Row:    fault.Row{Name: "slow-stop", Does: "stops a worker cleanly while a handler takes its time, and starts another", Counts: []history.Fault{slowStops}},
		worker: at((*slot).stopSlowly, afterEffect, afterEffect),
	},
	{
		Row:     fault.Row{Name: "slow-batch", Does: "lets handlers take about as long over a batch as it may take", Counts: []history.Fault{slowBatches}},
		handler: (*simulation).takeTime,
	},
	{
		Row:    clockRow,
		worker: at((*slot).setClock, afterGuard, afterEffect),
	},
	{
		Row:    leftRow,
		worker: at(func(s *slot, ctx, _ context.Context, _ point) error { s.leaveTransaction(ctx); return nil }, afterGuard, afterGuard),
	},
	{
		Row:    snapshotRow,
		worker: at(func(s *slot, ctx, intake context.Context, _ point) error { return s.holdSnapshot(ctx, intake) }, afterGuard),
	},
	{
		Row:    fault.Row{Name: "odd-time", Does: "appends events with an infinite or far time", Counts: []history.Fault{oddTimes}},
		writer: []operation{{weight: 3, ending: commit, run: (*writer).appendOddly}},
	},
}

// snapshot is how a backup reads.
var snapshot = &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}

// Faults of runs of both kinds.
var (
	clockRow    = fault.Row{Name: "clock", Does: "sets the server's clock back or forward by an hour, as far as the workers' rows tell", Counts: []history.Fault{clocksSet}}
	leftRow     = fault.Row{Name: "left", Does: "leaves a transaction open on a connection of a worker's pool", Counts: []history.Fault{transactionsLeft}}
	snapshotRow = fault.Row{Name: "snapshot", Does: "holds a snapshot, and the locks of a backup", Counts: []history.Fault{snapshotsHeld}}
)

// stopSlowly is a deployment in the middle of a batch that takes part of its time.
func (s *slot) stopSlowly(ctx, intake context.Context, at point) error {
	n, d := s.node, between(s.dice, 100*time.Millisecond, s.scenario.Knobs.BatchTimeout/2)
	injected, inBatch := s.inject(intake, at, func() {
		n.worker.Stop()
		backoff.Sleep(ctx, d)
	})
	if !injected {
		return nil
	}
	if !inBatch {
		s.happened(workersRestarted, "")
	} else {
		s.happened(slowStops, fmt.Sprintf("for %v", d))
	}
	return s.replace(ctx, intake, history.ExitStopped, 0)
}

// takeTime lets a handler take its time over some batches, at their first event: about as long
// as a batch may take, or over each event as long as that of a full batch.
func (s *simulation) takeTime(ctx context.Context, b *bookkeeper, d delivered, intensity float64) (bool, error) {
	const often, nearest, furthest = 0.01, 0.6, 1.3 // of the batches; of the time-out
	if d.first {
		b.slow = 0
		if !s.over() && chance(b.dice, often*intensity) {
			d := time.Duration((nearest + b.dice.Float64()*(furthest-nearest)) * float64(s.scenario.Knobs.BatchTimeout))
			b.injected(slowBatches, fmt.Sprintf("%v of %v", d, s.scenario.Knobs.BatchTimeout))
			if chance(b.dice, 0.5) {
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

// setClock makes all that workers have written about the time an hour older or newer, as if
// the server's clock had been set, at times while a worker crashes.
func (s *slot) setClock(ctx, intake context.Context, at point) error {
	if err := s.shiftTimes(ctx, "worker_nodes", "worker_leader_election"); err != nil || !chance(s.dice, 0.5) {
		return err
	}
	return s.crash(ctx, intake, at)
}

// shiftTimes moves the times of workers' rows and of the leader's lease by an hour. A row
// that is written between the two statements is not moved.
func (s *place[P]) shiftTimes(ctx context.Context, workers, lease string) error {
	by := oneOf(s.dice, "1 hour", "1 hour", "-1 hour")
	for _, statement := range []string{
		`UPDATE ` + workers + ` SET heartbeat_at = heartbeat_at + $1::interval WHERE isfinite(heartbeat_at)`,
		`UPDATE ` + lease + ` SET acquired_at = acquired_at + $1::interval, expires_at = expires_at + $1::interval`,
	} {
		if _, err := s.on.db.ExecContext(ctx, statement, by); err != nil {
			return s.on.forgive(fmt.Errorf("sim: set the clock: %w", s.on.mine(ctx, err)))
		}
	}
	s.happened(clocksSet, "by "+by)
	return nil
}

// leaveTransaction sends a BEGIN through the worker's pool, as a caller does who forgets its
// end: the next user of that connection must not run in it.
func (s *place[P]) leaveTransaction(ctx context.Context) {
	bounded, cancel := s.on.bounded(ctx, time.Second)
	defer cancel()
	if _, err := s.node.itself().db.ExecContext(bounded, oneOf(s.dice, "BEGIN", "BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN READ ONLY")); err == nil {
		s.happened(transactionsLeft, "")
	}
}

// holdSnapshot does what a backup does: it reads all tables in one snapshot.
func (s *place[P]) holdSnapshot(ctx, intake context.Context) error {
	err := s.on.inSnapshot(ctx, func() {
		s.happened(snapshotsHeld, "")
		s.pause(intake, 300*time.Millisecond, 3*time.Second)
		s.over(snapshotsHeld)
	})
	if err != nil {
		return s.on.forgive(fmt.Errorf("sim: hold a snapshot: %w", s.on.mine(ctx, err)))
	}
	return nil
}

// inSnapshot does something while a snapshot is held, and a lock of each table of the library
// that keeps no reader or writer out.
func (d *database) inSnapshot(ctx context.Context, do func()) error {
	tx, err := d.db.BeginTx(ctx, snapshot)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, `
DO $$ DECLARE name TEXT; BEGIN
	FOR name IN SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = current_schema() AND tablename NOT LIKE 'sim%' ORDER BY 1 LOOP
		EXECUTE 'LOCK TABLE ' || name || ' IN ACCESS SHARE MODE';
	END LOOP;
END $$`); err != nil {
		return err
	}
	do()
	return nil
}

// times are what others may have written into a column of ours.
var times = []string{"infinity", "-infinity", "20000-01-01", "4713-01-01 BC"}

// appendOddly appends events as another program does that writes their times itself.
func (w *writer) appendOddly(ctx, intake context.Context, a *attempt) error {
	before := len(a.drawn)
	if err := w.appendOnce(ctx, intake, a); err != nil {
		return err
	}
	positions := history.PositionsOf(a.drawn[before:])
	_, err := a.tx.ExecContext(ctx, `UPDATE events SET created_at = $2::timestamptz WHERE global_position = ANY ($1::bigint[])`, positions, oneOf(w.dice, times...))
	return err
}
