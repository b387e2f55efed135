package sim

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

const (
	copiesMade    history.Fault = "servers stopped for a cold copy"
	copiesPutBack history.Fault = "servers set back to a cold copy"
)

// restoreFaults set the server back to what it was.
var restoreFaults = []faultRow{{
	Row: fault.Row{
		Name: "restore", Does: "stops the server, copies its data, and puts the copy back some time later",
		Counts:  []history.Fault{copiesPutBack},
		Reaches: []oracle.Condition{oracle.ServerSetBack},
	},
	also: []history.Fault{copiesMade}, outage: true, needs: []*requirement{ownServer},
	worker: at((*slot).restore, afterEffect, afterCommit),
}}

// restoredSince reports whether the server has been set back since that life of
// it.
func (d *database) restoredSince(life int64) bool {
	if d.restored.Load() == 0 {
		return false
	}
	d.turn.Lock()
	defer d.turn.Unlock()
	return slices.ContainsFunc(d.restores, func(r history.Restore) bool { return r.Restored >= life })
}

// restore is somebody who makes a cold copy of the server, and some time later
// puts it back while the workers run. The end of the faults hurries the second
// part, but does not keep it from happening.
func (s *slot) restore(ctx, intake context.Context, at point) error {
	if !s.on.restoring.TryLock() {
		return nil
	}
	defer s.on.restoring.Unlock()
	s.on.waits.Store(true)
	defer s.on.waits.Store(false)
	saved, err := s.on.save(ctx, s.on.own.Save)
	if !saved || err != nil {
		return err
	}
	s.passed(copiesMade)
	s.pause(intake, 100*time.Millisecond, 100*time.Millisecond+s.scenario.Knobs.Calm/2)
	restored := false
	putBack := func() { restored, err = s.on.putBack(ctx, s.on.own.PutBack) }
	if injected, _ := s.inject(intake, at, putBack); !injected && ctx.Err() == nil {
		putBack()
	}
	if restored && err == nil {
		s.passed(copiesPutBack)
		s.pause(intake, 500*time.Millisecond, time.Second) // for positions to be drawn again
	}
	return err
}

// passed counts what was done to the server, and writes down that it is over.
func (s *slot) passed(f history.Fault) {
	s.tally.add(f, 1)
	s.history.Add("", "", history.FaultInjected, history.Injection{Fault: f})
	s.history.Add("", "", history.FaultOver, history.Injection{Fault: f})
}

// countPlaced counts the consumers that have a checkpoint. Parts come and go.
const countPlaced = `SELECT count(*) FROM consumer_checkpoints WHERE strpos(consumer_name, '#') = 0`

// save makes a copy by a change of the server. It reports false if there is another
// outage, or no consumer yet.
func (d *database) save(ctx context.Context, change func(context.Context) error) (bool, error) {
	if !d.turn.TryLock() {
		return false, nil
	}
	defer d.turn.Unlock()
	if err := d.db.QueryRowContext(ctx, countPlaced).Scan(&d.copiedPlaced); err != nil || d.copiedPlaced == 0 {
		return false, d.mine(ctx, err)
	}
	d.count.Add(1)
	during := d.life()
	if err := d.changeData(change); err != nil {
		return false, err
	}
	d.copied = during
	ctx, cancel := d.bounded(context.WithoutCancel(ctx), waitBound)
	defer cancel()
	err := d.db.QueryRowContext(ctx, `SELECT pg_snapshot_xmax(pg_current_snapshot())::text, pg_postmaster_start_time()::text`).Scan(&d.copiedXID, &d.copiedAt)
	return err == nil, d.unable(ctx, "reading where the copy stands", waitBound, err)
}

// putBack puts the copy back by a change of the server, when another outage is over,
// unless it would forget what never happens again: that a consumer was placed, or the
// repair of a batch that a handler had committed before, since the worker that knew of it
// has ended. None of these happens from the check on.
func (d *database) putBack(ctx context.Context, change func(context.Context) error) (restored bool, err error) {
	d.turn.Lock()
	defer d.turn.Unlock()
	if forgets, err := d.closeUnless(ctx); err != nil || forgets {
		return false, d.mine(ctx, err)
	}
	return true, d.replaceData(change)
}

// closeUnless has the triggers of copyTable refuse what the copy would forget, unless
// there is some.
func (d *database) closeUnless(ctx context.Context) (forgets bool, err error) {
	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback() }() // a no-op after the commit
	if _, err = tx.ExecContext(ctx, `UPDATE sim_copy SET put_back = true`); err != nil {
		return false, err
	}
	err = tx.QueryRowContext(ctx, `
SELECT (`+countPlaced+`) <> $3::int OR EXISTS (SELECT FROM consumer_operations
	WHERE operation = 'repair' AND created_at >= $1::timestamptz AND (detail->>'transaction')::bigint < $2::bigint)`,
		d.copiedAt, d.copiedXID, d.copiedPlaced).Scan(&forgets)
	if err != nil || forgets {
		return forgets, err
	}
	return false, tx.Commit()
}

// replaceData puts the copy back, and ends what nobody will: the copy may have
// transactions that were prepared, and consumers that were paused, when it was made.
func (d *database) replaceData(change func(context.Context) error) error {
	d.count.Add(1)
	r := history.Restore{Copied: d.copied, Restored: d.life()}
	d.restores = append(d.restores, r)
	d.restored.Add(1)
	err := d.follower.without(func() error { return d.changeData(change) })
	if err == nil {
		ctx, cancel := d.bounded(context.Background(), waitBound)
		defer cancel()
		err = d.unable(ctx, "ending what the copy had left open", waitBound, errors.Join(d.endPrepared(ctx), d.resumeAll(ctx)))
	}
	return err
}

// changeData stops and starts the server, and marks its new life when it
// answers.
func (d *database) changeData(change func(context.Context) error) error {
	const step = "the copy of the server"
	ctx, cancel := d.bounded(context.Background(), waitBound)
	defer cancel()
	d.copying.Store(true)
	defer d.copying.Store(false)
	if err := change(ctx); err != nil {
		return d.giveUp(step, err)
	}
	d.refresh()
	for d.db.PingContext(ctx) != nil {
		if !backoff.Sleep(ctx, 5*time.Millisecond) {
			return d.giveUp(step, ctx.Err())
		}
	}
	d.count.Add(1)
	return nil
}

// endPrepared rolls back the transactions that were prepared in another life.
func (d *database) endPrepared(ctx context.Context) error {
	gids, err := column[string](ctx, d, `SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND prepared < pg_postmaster_start_time()`)
	for _, gid := range gids {
		_, undone := d.db.ExecContext(ctx, "ROLLBACK PREPARED "+ident.Literal(gid))
		err = errors.Join(err, undone)
	}
	return err
}

// resumeAll lets consumers go on that were paused in another life.
func (d *database) resumeAll(ctx context.Context) error {
	o, err := ops.New(d.db, nil)
	if err != nil {
		return err
	}
	paused, err := column[string](ctx, d, `SELECT consumer_name FROM consumer_checkpoints WHERE paused_at < pg_postmaster_start_time() AND split_at IS NULL`)
	for _, consumer := range paused {
		if again := o.Resume(ctx, consumer, by); !errors.Is(again, ops.ErrNotPaused) {
			err = errors.Join(err, again)
		}
	}
	return err
}
