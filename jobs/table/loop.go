package table

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/observe"
)

// loop claims jobs and starts them. One goroutine runs it, so the claims of a worker never overlap.
type loop struct {
	*claims
	stop func() // stops the worker
	pace
	failures  int
	doubtTo   time.Time       // until then, a claim with a lost answer may be committed
	asked     <-chan struct{} // closed when a PreDequeue that was given up has returned
	orphansAt time.Time
}

// pace decides when to claim next.
type pace struct {
	handlers  int
	claimable bool // there may be more jobs to claim
	took      time.Duration
	claimed   time.Time // end of the last claim
	pollAt    time.Time
	polls     jobrun.Polls
	pausedTo  time.Time // pause after a failure ends then
}

// next returns when to claim with free slots. A time that is not after now means at once. never is
// true if the next claim needs another event, such as a free slot.
func (p pace) next(free int) (at time.Time, never bool) {
	if free <= 0 {
		return at, true
	}
	if !p.claimable {
		at = p.pollAt
	} else if free < (p.handlers+1)/2 {
		at = p.claimed.Add(min(p.took, jobrun.Gather))
	}
	if at.Before(p.pausedTo) {
		at = p.pausedTo
	}
	return at, false
}

// rested returns the pace after a claim that found fewer rows than slots, or that was skipped.
// After a skipped claim, found is above 0, since the hook may soon allow a claim. random is in
// [0, 1).
func (p pace) rested(now time.Time, found int, random float64) pace {
	pause, polls := p.polls.Next(found == 0, random)
	p.claimable, p.pollAt, p.polls = false, now.Add(pause), polls
	return p
}

// ended returns the pace after the end of a job, which may be retried.
func (p pace) ended(now time.Time) pace {
	p.pollAt, p.polls = p.polls.Soon(now, p.pollAt)
	return p
}

func newLoop(w *Worker) *loop {
	return &loop{claims: &claims{w.calls, w.handler.read}, stop: w.Stop, pace: pace{handlers: w.opts.NumHandlers, claimable: true, polls: jobrun.Polls{First: w.opts.Interval, Longest: w.opts.MaxInterval}}}
}

// run claims until intake has ended or NumTotalJobs are claimed. Then it waits until no handler
// runs, except handlers that were given up. It returns an error if PreDequeue was given up and
// still runs.
func (l *loop) run(ctx, intake context.Context) error {
	for intake.Err() == nil && l.left(1) > 0 {
		free, _ := l.free()
		at, never := l.next(free)
		if now := time.Now(); !never && !at.After(now) {
			l.claim(ctx, intake, free)
		} else {
			l.sleep(intake, at.Sub(now), never)
		}
		l.releaseOrphans(ctx)
	}
	l.stop() // after NumTotalJobs
	for l.inFlight.Busy(func(*run) bool { return true }) && ctx.Err() == nil {
		l.sleep(ctx, 0, true)
	}
	if l.asked == nil {
		return nil
	}
	select {
	case <-l.asked:
		return nil
	default:
		return fmt.Errorf("%w: the hook PreDequeue", ErrHandlerOverdue)
	}
}

// left bounds a number of jobs by the jobs that may still be claimed.
func (l *loop) left(n int) int {
	if l.opts.NumTotalJobs == 0 {
		return n
	}
	_, claimed := l.free()
	return min(n, l.opts.NumTotalJobs-int(claimed))
}

// sleep waits for a time or for a free slot. A free slot causes a claim if the hook may have
// skipped claims because of the running jobs.
func (l *loop) sleep(ctx context.Context, d time.Duration, never bool) {
	if never || time.Now().Before(l.doubtTo) && d > l.opts.HeartbeatInterval {
		d = l.opts.HeartbeatInterval
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.wake:
		l.claimable = l.claimable || l.handler.preDequeue != nil
		l.pace = l.ended(time.Now())
	case <-ctx.Done():
	}
}

// claim claims jobs for free slots, and starts them, unless intake ends before.
func (l *loop) claim(ctx, intake context.Context, free int) {
	l.turns.claims.Begin()
	defer l.turns.claims.End()
	condition, ok := l.preDequeue(intake)
	if !ok || intake.Err() != nil {
		l.rest(1)
		return
	}
	limit := pgdriver.RoundLimit(l.left(free))
	if condition.SQL != "" {
		limit = 1 // the next condition counts what this row takes
	}
	begin := time.Now()
	found, ready := 0, []*run(nil)
	err := l.on(ctx, func(ctx context.Context, conn *sql.Conn) (err error) {
		var runs []*run
		on := l.store.db.Plans.On(conn, conn)
		runs, found, err = l.claimOn(ctx, on, condition, limit)
		l.claimed = time.Now()
		l.took = l.claimed.Sub(begin)
		if err != nil {
			l.doubtTo = l.claimed.Add(l.store.settings.stalled)
		}
		l.reportClaimed(len(runs), l.took)
		var unread error
		ready, unread = l.open(ctx, on, runs)
		return errtext.Join(err, unread)
	})
	for _, r := range ready {
		l.start(r)
	}
	l.outcome(observe.ConditionClaim, err)
	if err != nil {
		l.failures++
		l.pausedTo = time.Now().Add(backoff.Session(l.failures))
		return
	}
	if l.failures = 0; found < limit {
		l.rest(found)
	}
}

// rest makes the loop wait for the next poll.
func (l *loop) rest(found int) {
	l.pace = l.rested(time.Now(), found, rand.Float64())
}

// preDequeue calls the user's hook. A hook that ignores the end of its context is given up.
func (l *loop) preDequeue(intake context.Context) (c Condition, ok bool) {
	hook := l.handler.preDequeue
	if hook == nil {
		return c, true
	}
	var answered bool
	var answer struct {
		ok  bool
		c   Condition
		err error
	}
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		answered = l.observers.Call("PreDequeue", func() { answer.ok, answer.c, answer.err = hook(intake) })
	}()
	if !l.await(intake, "PreDequeue", returned) {
		l.asked = returned
		return c, false
	}
	if answer.err != nil && intake.Err() == nil {
		l.outcome(observe.ConditionClaim, answer.err)
	}
	return answer.c, answered && answer.ok && answer.err == nil
}

// releaseOrphans queues jobs again whose claim got no answer. The claim may still run in the
// server, so releaseOrphans repeats the statement for a while.
func (l *loop) releaseOrphans(ctx context.Context) {
	now := time.Now()
	if !now.Before(l.doubtTo) || now.Before(l.orphansAt) {
		return
	}
	l.orphansAt = now.Add(l.opts.HeartbeatInterval)
	l.turns.claims.Begin()
	defer l.turns.claims.End()
	var mine []claim
	for _, r := range l.inFlight.All() {
		mine = append(mine, r.Claim)
	}
	ids, _ := queue.Arrays(mine)
	err := l.on(ctx, func(ctx context.Context, conn *sql.Conn) error {
		_, err := l.store.db.Plans.On(conn, conn).ExecContext(ctx, l.sql.releaseOrphans, ids, l.host)
		return err
	})
	if err != nil { // if the next claim fails too, it reports the error
		l.claimable = true
	}
}
