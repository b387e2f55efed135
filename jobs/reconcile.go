package jobs

import (
	"context"
	"database/sql"
	"time"

	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/queue"
)

// idleReconcile is after how many heartbeats a worker reconciles that has no jobs in flight and
// knows of no lost claim. It must reconcile all the same: another server may have answered its
// claims.
const idleReconcile = 6

// reconcileShare bounds the share of time that a worker spends on reconciling, to one in
// reconcileShare. While vacuum is held back, the index of running jobs is full of dead entries.
const reconcileShare = 20

// reconciler compares the jobs in flight with the database.
type reconciler struct {
	*shared
	starter *starter
	at      time.Time // when to reconcile next
	last    time.Time
	doubt   time.Time // until then, a claim with a lost answer may be under way; zero: none
}

// doubtClaim records that a claim got no answer.
func (c *reconciler) doubtClaim() {
	c.doubt = time.Now().Add(c.limit)
	c.at = earlier(c.at, time.Now().Add(c.cfg.heartbeat))
}

// pause returns the pause after a reconciliation that took took. A long reconciliation may
// have waited for its connection or a lock. So the pause is at most [idleReconcile] heartbeats.
// While the answer of a claim is missing, the pause is one heartbeat.
func (c *reconciler) pause(took time.Duration) time.Duration {
	beat := c.cfg.heartbeat
	if !c.doubt.IsZero() {
		return beat
	}
	return min(max(beat, reconcileShare*took), idleReconcile*beat)
}

// due reports whether to compare the jobs in flight with the database.
func (c *reconciler) due(now time.Time) bool {
	return c.reconcileAsked.Load() || !now.Before(c.at)
}

// reconcile compares the jobs in flight with the jobs that the database says this worker runs. If a
// job is only in the database, the answer of its claim was lost: the loop adopts the job. If a job
// is only in flight, another worker has it.
//
// The set of jobs in flight is taken before the statement. No claim is under way, since this
// goroutine sends the claims. So no claim that is still unanswered can explain an unknown job. Runs
// in the phase Settling are left to the settler: their outcome may have been stored in between.
func (c *reconciler) reconcile(ctx context.Context) {
	c.reconcileAsked.Store(false)
	c.at = time.Now().Add(c.cfg.heartbeat)
	before := c.mine()
	if len(before) == 0 && c.doubt.IsZero() && time.Since(c.last) < idleReconcile*c.cfg.heartbeat {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	begin := time.Now()
	rows, err := onLoop(ctx, c.shared, func(conn *sql.Conn) ([]queue.Job, error) {
		return c.queue.InFlight(ctx, c.planned(conn, conn), c.source.ID, c.name)
	})
	c.failed(err)
	if err != nil {
		return
	}
	if begin.After(c.doubt) {
		c.doubt = time.Time{}
	}
	c.last = time.Now()
	c.at = c.last.Add(c.pause(c.last.Sub(begin)))
	found := make(map[queue.Run]queue.Job, len(rows))
	for _, j := range rows {
		found[j.Run] = j
		if _, known := before[j.Run]; !known {
			c.starter.adopt(j)
		}
	}
	for k, r := range before {
		j, is := found[k]
		p := r.Phase()
		switch {
		case !c.starter.inFlight.Has(r) || p == jobrun.Settling:
		case !is:
			c.lose(r, p)
		case j.Cancel && p == jobrun.Running: // a cancelled job that is prefetched does not start
			r.End(ErrCancelled)
		}
	}
}

// lose ends a run whose job another worker has.
func (c *reconciler) lose(r *run, p jobrun.Phase) {
	if p == jobrun.Claimed {
		c.starter.drop(r)
		return
	}
	r.End(ErrClaimLost)
}

// mine returns the runs of this queue.
func (c *reconciler) mine() map[queue.Run]*run {
	mine := map[queue.Run]*run{}
	for _, r := range c.starter.inFlight.All() {
		if c.has(r) {
			mine[r.Claim] = r
		}
	}
	return mine
}
