package jobs

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/observe"
)

// claim claims up to want jobs, and starts the jobs that have slots.
func (l *loop) claim(ctx context.Context, want int) {
	condition, skip := l.beforeClaim(ctx)
	if skip {
		l.claimable, l.pollAt = false, time.Now().Add(l.polls.First)
		return
	}
	slots := l.w.slots.take(l.seat, min(want, l.free()))
	want = l.w.slots.allot(pgdriver.RoundLimit(min(want, slots+l.w.cfg.prefetch-min(l.w.cfg.prefetch, len(l.ready)))))
	if want == 0 { // another queue was faster; give wakes this loop
		l.w.slots.give(slots)
		return
	}
	jobs, err := l.claimOnce(ctx, want, min(slots, want), condition)
	started := 0
	for _, j := range jobs {
		if j.Started {
			started++
		}
	}
	l.w.slots.restore(want, len(jobs), started)
	l.w.slots.give(slots - started)
	l.failed(err)
	if err != nil {
		l.doubt = time.Now().Add(l.w.limit)
		l.reconcileAt = earlier(l.reconcileAt, time.Now().Add(l.w.cfg.heartbeat))
		return
	}
	l.admit(jobs)
	if len(jobs) >= want {
		return
	}
	l.idle(ctx, len(jobs))
}

// claimOnce sends one claim. The claim begins above the floors of the lanes. It begins at the
// bottom if a low claim is due, or if the user's filter has a condition.
func (l *loop) claimOnce(ctx context.Context, want, slots int, condition ClaimFilter) (jobs []queue.Job, err error) {
	begin := time.Now()
	l.low = condition.Condition != "" || !begin.Before(l.lanes.lowDue)
	d := queue.Demand{
		Worker: l.w.source.ID, Claim: rand.Int64N(1<<63-1) + 1, Queue: l.name, Kinds: l.w.kinds,
		Limit: want, Start: slots, Condition: condition.Condition, Args: condition.Args,
	}
	ctx, cancel := context.WithTimeout(ctx, l.w.limit)
	defer cancel()
	limit := want
	if l.capped() {
		err = l.on(ctx, func(conn *sql.Conn) (err error) {
			jobs, limit, err = l.claimCapped(ctx, conn, d)
			return err
		})
	} else {
		jobs, err = onLoop(ctx, l, func(conn *sql.Conn) ([]queue.Job, error) { return l.walk(ctx, conn, conn, d) })
	}
	now := time.Now()
	l.took, l.claimedAt = now.Sub(begin), now
	if err != nil {
		return nil, err
	}
	if limit == 0 {
		l.walkAt = begin // a claim without room takes nothing
	} else {
		l.lanes.claimed(jobs, limit, l.low, condition.Condition != "", l.walkAt, l.walkedAt)
	}
	if len(jobs) > 0 {
		l.w.observers.Notify(observe.JobsClaimed{Queue: l.name, Jobs: len(jobs), Took: l.took})
		l.change(func(s *QueueStatus) { s.Claimed += int64(len(jobs)) })
	}
	return jobs, nil
}

func (l *loop) capped() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.s.Capped
}

// claimCapped claims under the caps. It holds the caps' lock until the claim is committed. room is
// how many jobs the caps allow; if room is 0, claimCapped claims nothing.
func (l *loop) claimCapped(ctx context.Context, conn *sql.Conn, d queue.Demand) (jobs []queue.Job, room int, err error) {
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return nil, 0, fmt.Errorf("jobs: claim from queue %q: %w", l.name, err)
	}
	defer func() { _ = tx.Rollback() }() // a no-op after the commit
	if room, d.Caps, err = l.w.queue.Room(ctx, l.w.planned(conn, tx), l.name, d.Limit); err != nil || room == 0 {
		return nil, 0, err
	}
	d.Limit, d.Start = room, min(room, d.Start)
	if jobs, err = l.walk(ctx, conn, tx, d); err != nil {
		return nil, 0, err
	}
	if err := tx.Commit(); err != nil {
		return nil, 0, fmt.Errorf("jobs: claim from queue %q: commit: %w", l.name, err)
	}
	return jobs, room, nil
}

// walk sends a claim and measures its time. The time includes no wait for a connection. It includes
// no wait for the lock of a cap either: a worker that stands still may hold the lock.
func (l *loop) walk(ctx context.Context, conn *sql.Conn, on Querier, d queue.Demand) ([]queue.Job, error) {
	l.walkAt = time.Now()
	d.Lanes = l.lanes.next(l.low, l.walkAt)
	jobs, err := l.w.queue.Claim(ctx, l.w.planned(conn, on), d)
	l.walkedAt = time.Now()
	return jobs, err
}

// failed records whether a statement of the loop has failed.
func (l *loop) failed(err error) {
	err = errtext.Of(err)
	l.change(func(s *QueueStatus) { s.LastError = err })
	if err == nil {
		l.failures = 0
		l.w.observers.End(about(observe.ConditionQueue, l.name))
		return
	}
	l.failures++
	l.pausedTo = time.Now().Add(backoff.Session(l.failures))
	l.w.observers.Begin(about(observe.ConditionQueue, l.name), err)
	l.w.observers.Notify(observe.StatementFailed{Condition: observe.ConditionQueue, Queue: l.name, Err: err})
}

// conditionOffset is how many parameters a claim has before the parameters of a condition.
const conditionOffset = 7

// beforeClaim calls the user's BeforeClaim hook. skip reports whether to leave out this claim.
func (l *loop) beforeClaim(ctx context.Context) (c ClaimFilter, skip bool) {
	hook := l.w.cfg.hooks.BeforeClaim
	if hook == nil {
		return c, false
	}
	if !l.w.observers.Call("BeforeClaim", func() { c = hook(ctx, l.name) }) {
		return ClaimFilter{}, true
	}
	c.Condition = pgdriver.ShiftParameters(c.Condition, conditionOffset)
	return c, c.Skip
}

// admit adds claimed jobs to the jobs in flight, in the order in which they are to run.
func (l *loop) admit(jobs []queue.Job) {
	slices.SortFunc(jobs, func(a, b queue.Job) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), a.RunAt.Compare(b.RunAt), cmp.Compare(a.ID, b.ID))
	})
	var start []*run
	bytes := 0
	for _, j := range jobs {
		bytes += len(j.Args)
		r := l.newRun(j)
		l.w.inFlight.Add(r)
		if j.Started {
			start = append(start, r)
		} else {
			l.ready = append(l.ready, r)
		}
	}
	if len(jobs) > 0 {
		l.width = bytes / len(jobs)
	}
	l.showPrefetched()
	l.start(start)
}

func (l *loop) newRun(j queue.Job) *run {
	h := l.w.handlers.of[j.Kind]
	most := j.Most
	if most == 0 {
		most = h.maxAttempts
	}
	return &run{Run: jobrun.Run{Claim: j.Run}, env: l.w.env, loop: l, handler: h, row: j, header: headerOf(j, l.name, most)}
}

func (l *loop) showPrefetched() {
	n := len(l.ready)
	l.change(func(s *QueueStatus) { s.Prefetched = n })
}
