package jobs

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/observe"
)

// idle records that the claim found fewer jobs than slots, and reads when more jobs are due.
func (l *loop) idle(ctx context.Context, found int) {
	l.claimable = false
	if found > 0 {
		l.polls.Quiet = 0
	}
	if l.wantDue(time.Now()) {
		if l.want(ctx); l.claimable {
			return
		}
	}
	if l.pollAt = l.peekedAt.Add(min(10*l.peekTook, l.polls.First)); !time.Now().Before(l.pollAt) {
		l.peek(ctx, found > 0)
	}
}

// peek reads when the next job is due, and sets the time of the next claim. The next claim comes at
// once in three cases. A job is due and now is true. A job is due and the last claim began above
// the job. The job became due after the last claim. Otherwise the next claim comes when the job is
// due, or when polls says.
func (l *loop) peek(ctx context.Context, now bool) {
	ctx, cancel := context.WithTimeout(ctx, l.w.limit)
	defer cancel()
	begin := time.Now()
	low := l.lanes.walkIsLow(begin)
	p, err := onLoop(ctx, l, func(conn *sql.Conn) (queue.Peek, error) {
		return l.w.queue.Peek(ctx, l.w.planned(conn, conn), l.name, l.lanes.next(low, begin), l.w.kinds, l.polls.Ahead())
	})
	l.peekedAt = time.Now()
	l.peekTook = l.peekedAt.Sub(begin)
	l.failed(err)
	if err != nil {
		l.polls.Quiet = 0
		l.pollAt = l.lanes.nextPeek(false, l.peekedAt.Add(l.polls.First))
		return
	}
	pause, polls := nextPoll(l.polls, p, low && !l.notifyDown, rand.Float64())
	l.polls, l.pollAt = polls, l.lanes.nextPeek(low, l.peekedAt.Add(pause))
	if low && (p.None || p.Due > 0) {
		l.lanes.nothingDue(begin, l.peekedAt)
	}
	wasCapped := l.capped()
	l.change(func(s *QueueStatus) { s.Capped, s.Paused = p.Capped, p.Paused })
	switch {
	case p.None || p.Paused || p.Due > 0:
	case now || low && !l.low || p.Capped && !wasCapped || l.peekedAt.Add(p.Due).After(l.walkAt):
		if l.claimable = true; low {
			l.lanes.lowDue = time.Time{} // above the floors there may be no job
		}
	}
	if p.None && l.peekedAt.After(l.unknownAt) {
		l.unknownAt = l.peekedAt.Add(unknownEvery)
		l.checkUnknown(ctx)
	}
}

// checkUnknown reports the kinds of due jobs for which this worker has no handler.
func (l *loop) checkUnknown(ctx context.Context) {
	kinds, err := onLoop(ctx, l, func(conn *sql.Conn) ([]string, error) {
		return l.w.queue.Unknown(ctx, l.w.planned(conn, conn), l.name, l.w.kinds)
	})
	if err != nil {
		l.failed(err)
		return
	}
	changed := false
	l.change(func(s *QueueStatus) {
		changed = !slices.Equal(s.UnknownKinds, kinds)
		s.UnknownKinds = kinds
	})
	if changed && len(kinds) > 0 {
		l.w.observers.Notify(observe.UnknownKinds{Queue: l.name, Kinds: kinds})
	}
}
