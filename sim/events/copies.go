package events

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/server"
	"github.com/pgfrontier/worker/sim/stage"
)

// copies are the cold copies of a server that a run of events makes and puts back.
type copies struct {
	on       *server.Instance
	follower *server.Follower

	restoring    sync.Mutex  // held while a copy is made and put back
	waits        atomic.Bool // a copy is made, or waits to be put back, or has just been
	copying      atomic.Bool // the server is down for a copy
	copied       int64       // the life that ended for the copy; 0: there is none
	copiedAt     string      // when the server was back after that
	copiedXID    int64       // no transaction of the copy is above
	copiedPlaced int         // consumers that had a checkpoint before the copy
	restores     []history.Restore
	restored     atomic.Int64 // copies that were put back
}

// restoredSince reports whether the server has been set back since that life of
// it.
func (c *copies) restoredSince(life int64) bool {
	if c.restored.Load() == 0 {
		return false
	}
	c.on.Outage()
	defer c.on.EndOutage()
	return slices.ContainsFunc(c.restores, func(r history.Restore) bool { return r.Restored >= life })
}

// countPlaced counts the consumers that have a checkpoint. Parts come and go.
const countPlaced = `SELECT count(*) FROM consumer_checkpoints WHERE strpos(consumer_name, '#') = 0`

// save makes a copy by a change of the server. It reports false if there is another
// outage, or no consumer yet.
func (c *copies) save(ctx context.Context, change func(context.Context) error) (bool, error) {
	if !c.on.TryOutage() {
		return false, nil
	}
	defer c.on.EndOutage()
	if err := c.on.DB.QueryRowContext(ctx, countPlaced).Scan(&c.copiedPlaced); err != nil || c.copiedPlaced == 0 {
		return false, c.on.Mine(ctx, err)
	}
	during := c.on.EndLife()
	if err := c.changeData(change); err != nil {
		return false, err
	}
	c.copied = during
	ctx, cancel := c.on.Bounded(context.WithoutCancel(ctx), server.WaitBound)
	defer cancel()
	err := c.on.DB.QueryRowContext(ctx, `SELECT pg_snapshot_xmax(pg_current_snapshot())::text, pg_postmaster_start_time()::text`).Scan(&c.copiedXID, &c.copiedAt)
	return err == nil, c.on.Unable(ctx, "reading where the copy stands", server.WaitBound, err)
}

// putBack puts the copy back by a change of the server, when other outages are over. It does not if
// the copy would forget what does not happen again: that a consumer was placed, or the repair of a
// batch that a handler had committed, whose worker has ended. Neither happens between the check and
// the change.
func (c *copies) putBack(ctx context.Context, change func(context.Context) error) (restored bool, err error) {
	c.on.Outage()
	defer c.on.EndOutage()
	if forgets, err := c.closeUnless(ctx); err != nil || forgets {
		return false, c.on.Mine(ctx, err)
	}
	return true, c.replaceData(change)
}

// closeUnless makes the triggers of copyTable refuse what the copy would forget. It does not if
// that has happened already.
func (c *copies) closeUnless(ctx context.Context) (forgets bool, err error) {
	tx, err := c.on.DB.BeginTx(ctx, nil)
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
		c.copiedAt, c.copiedXID, c.copiedPlaced).Scan(&forgets)
	if err != nil || forgets {
		return forgets, err
	}
	return false, tx.Commit()
}

// replaceData puts the copy back. It ends the prepared transactions and the pauses that were in the
// copy: nobody else would.
func (c *copies) replaceData(change func(context.Context) error) error {
	r := history.Restore{Copied: c.copied, Restored: c.on.EndLife()}
	c.restores = append(c.restores, r)
	c.restored.Add(1)
	err := c.follower.Without(func() error { return c.changeData(change) })
	if err == nil {
		ctx, cancel := c.on.Bounded(context.Background(), server.WaitBound)
		defer cancel()
		err = c.on.Unable(ctx, "ending what the copy had left open", server.WaitBound, errors.Join(c.on.RollBackPrepared(ctx, "pg_postmaster_start_time()"), c.resumeAll(ctx)))
	}
	return err
}

// changeData stops and starts the server, and marks its new life when it
// answers.
func (c *copies) changeData(change func(context.Context) error) error {
	const step = "the copy of the server"
	ctx, cancel := c.on.Bounded(context.Background(), server.WaitBound)
	defer cancel()
	c.copying.Store(true)
	defer c.copying.Store(false)
	if err := change(ctx); err != nil {
		return c.on.GiveUp(step, err)
	}
	c.on.Refresh()
	for c.on.DB.PingContext(ctx) != nil {
		if !backoff.Sleep(ctx, 5*time.Millisecond) {
			return c.on.GiveUp(step, ctx.Err())
		}
	}
	c.on.BeginLife()
	return nil
}

// resumeAll resumes consumers that were paused in another life.
func (c *copies) resumeAll(ctx context.Context) error {
	o, err := ops.New(c.on.DB)
	if err != nil {
		return err
	}
	paused, err := server.Column[string](ctx, c.on.Database, `SELECT consumer_name FROM consumer_checkpoints WHERE paused_at < pg_postmaster_start_time() AND split_at IS NULL`)
	for _, consumer := range paused {
		if again := o.Resume(ctx, consumer, stage.By); !errors.Is(again, ops.ErrUnchanged) {
			err = errors.Join(err, again)
		}
	}
	return err
}
