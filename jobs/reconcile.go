package jobs

import (
	"context"
	"database/sql"
	"slices"
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

// reconcilePause returns the pause after a reconciliation that took took. A long reconciliation may
// have waited for its connection or a lock. So the pause is at most [idleReconcile] heartbeats.
// While the answer of a claim is missing, the pause is one heartbeat.
func (l *loop) reconcilePause(took time.Duration) time.Duration {
	beat := l.w.cfg.heartbeat
	if !l.doubt.IsZero() {
		return beat
	}
	return min(max(beat, reconcileShare*took), idleReconcile*beat)
}

// reconcileDue reports whether to compare the jobs in flight with the database.
func (l *loop) reconcileDue(now time.Time) bool {
	return l.reconcileAsked.Load() || !now.Before(l.reconcileAt)
}

// reconcile compares the jobs in flight with the jobs that the database says this worker runs. If a
// job is only in the database, the answer of its claim was lost: the loop adopts the job. If a job
// is only in flight, another worker has it.
//
// The set of jobs in flight is taken before the statement. No claim is under way, since this
// goroutine sends the claims. So no claim that is still unanswered can explain an unknown job. Runs
// in the phase Settling are left to the settler: their outcome may have been stored in between.
func (l *loop) reconcile(ctx context.Context) {
	l.reconcileAsked.Store(false)
	l.reconcileAt = time.Now().Add(l.w.cfg.heartbeat)
	before := l.inFlight()
	if len(before) == 0 && l.doubt.IsZero() && time.Since(l.reconciledAt) < idleReconcile*l.w.cfg.heartbeat {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, l.w.limit)
	defer cancel()
	begin := time.Now()
	rows, err := onLoop(ctx, l, func(conn *sql.Conn) ([]queue.Job, error) {
		return l.w.queue.InFlight(ctx, l.w.planned(conn, conn), l.w.source.ID, l.name)
	})
	l.failed(err)
	if err != nil {
		return
	}
	if begin.After(l.doubt) {
		l.doubt = time.Time{}
	}
	l.reconciledAt = time.Now()
	l.reconcileAt = l.reconciledAt.Add(l.reconcilePause(l.reconciledAt.Sub(begin)))
	found := make(map[queue.Run]queue.Job, len(rows))
	for _, j := range rows {
		found[j.Run] = j
		if _, known := before[j.Run]; !known {
			l.adopt(j)
		}
	}
	for k, r := range before {
		j, is := found[k]
		p := r.Phase()
		switch {
		case !l.w.inFlight.Has(r) || p == jobrun.Settling:
		case !is:
			l.lose(r, p)
		case j.Cancel:
			l.cancel(r, p)
		}
	}
}

// adopt adds a job whose claim got no answer. The job runs once there is a slot.
func (l *loop) adopt(j queue.Job) {
	if l.w.handlers.of[j.Kind] == nil {
		return
	}
	r := l.newRun(j)
	l.w.inFlight.Add(r)
	l.ready = append(l.ready, r)
	l.w.slots.adopt()
	l.showPrefetched()
}

// lose ends a run whose job another worker has.
func (l *loop) lose(r *run, p jobrun.Phase) {
	if p == jobrun.Claimed {
		l.ready = slices.DeleteFunc(l.ready, func(o *run) bool { return o == r })
		l.showPrefetched()
		l.w.slots.begin(0, 1)
		l.w.lost(r)
		return
	}
	r.End(ErrClaimLost)
}

// cancel ends a run whose job was cancelled. A prefetched job needs no action: the statement that
// starts runs does not start cancelled jobs.
func (l *loop) cancel(r *run, p jobrun.Phase) {
	if p == jobrun.Running {
		r.End(ErrCancelled)
	}
}
