package jobs

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/queue"
)

// emptyLook is how many heartbeats apart a worker looks that has nothing in hand and
// knows of no claim that was lost. What it was told of a job may have been the answer
// of another server.
const emptyLook = 6

// lookShare bounds the share of its time that a worker looks, to one of so many: while
// vacuum is held back, the index of what runs is full of what has run.
const lookShare = 20

// lookPause is how long after a look the next one is due. One that took long may have
// waited for its connection, or a lock, and puts the next off no farther than if there
// were nothing in hand; and nothing puts it off while the answer of a claim is missing.
func (l *loop) lookPause(took time.Duration) time.Duration {
	beat := l.w.cfg.heartbeat
	if !l.doubt.IsZero() {
		return beat
	}
	return min(max(beat, lookShare*took), emptyLook*beat)
}

// lookDue reports whether to compare the jobs in hand with the database.
func (l *loop) lookDue(now time.Time) bool {
	return l.look.Load() || !now.Before(l.lookAt)
}

// lookNow compares the jobs in hand with what the database says that this worker
// runs. A job that is not in hand is of a claim whose answer was lost: it is
// adopted. One that is in hand only is another's by now.
//
// The set in hand is taken before. No claim is under way, since this goroutine
// sends the claims, so what it finds and does not know is no claim's that will
// still be answered. A run that the settler has is the settler's affair: it may
// have been stored in between.
func (l *loop) lookNow(ctx context.Context) {
	l.look.Store(false)
	l.lookAt = time.Now().Add(l.w.cfg.heartbeat)
	before := l.w.hand.of(l)
	if len(before) == 0 && l.doubt.IsZero() && time.Since(l.lookedAt) < emptyLook*l.w.cfg.heartbeat {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, l.w.limit)
	defer cancel()
	begin := time.Now()
	rows, err := onLoop(ctx, l, func(conn *sql.Conn) ([]queue.Job, error) {
		return l.w.queue.InFlight(ctx, l.w.planned(conn, conn), l.w.id, l.name)
	})
	l.failed(err)
	if err != nil {
		return
	}
	if begin.After(l.doubt) {
		l.doubt = time.Time{}
	}
	l.lookedAt = time.Now()
	l.lookAt = l.lookedAt.Add(l.lookPause(l.lookedAt.Sub(begin)))
	found := make(map[queue.Run]queue.Job, len(rows))
	for _, j := range rows {
		found[j.Run] = j
		if _, known := before[j.Run]; !known {
			l.adopt(j)
		}
	}
	for k := range before {
		j, is := found[k]
		r, p := l.w.hand.get(k)
		switch {
		case r == nil || p == settling:
		case !is:
			l.lose(r, p)
		case j.Cancel:
			l.cancel(r, p)
		}
	}
}

// adopt takes a job in whose claim was not answered. It runs once there is a slot.
func (l *loop) adopt(j queue.Job) {
	if l.w.handlers.of[j.Kind] == nil {
		return
	}
	r := l.newRun(j)
	if older := l.w.hand.add(r); older != nil {
		older.end(ErrClaimLost)
	}
	l.ready = append(l.ready, r)
	l.w.slots.adopt()
	l.showPrefetched()
}

// lose ends a run whose job is another's.
func (l *loop) lose(r *run, p phase) {
	if p == prefetched {
		l.ready = slices.DeleteFunc(l.ready, func(o *run) bool { return o == r })
		l.showPrefetched()
		l.w.slots.begin(0, 1)
		l.w.lost(r)
		return
	}
	r.end(ErrClaimLost)
}

// cancel ends a run whose job was cancelled. The statement that starts a run sees
// that itself, and starts it not.
func (l *loop) cancel(r *run, p phase) {
	if p == running {
		r.end(ErrCancelled)
	}
}
