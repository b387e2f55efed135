package jobs

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/queue"
)

// idle takes note that there was less to claim than slots, and looks when there
// will be more.
func (l *loop) idle(ctx context.Context, found int) {
	l.hungry = false
	if now := time.Now(); l.w.cfg.notify != "" && now.After(l.wantedTo) {
		ctx, cancel := context.WithTimeout(ctx, l.w.limit)
		defer cancel()
		err := l.on(ctx, func(conn *sql.Conn) error { return l.w.queue.Want(ctx, l.w.planned(conn, conn), l.name) })
		l.failed(err)
		l.wantedTo = now.Add(wantEvery)
		l.hungry = err == nil // what was enqueued before this is not told
		return
	}
	if l.pollAt = l.peekedAt.Add(min(10*l.peekTook, l.w.cfg.pollInterval)); !time.Now().Before(l.pollAt) {
		l.peek(ctx, found > 0)
	}
}

// peek looks when the next job is due, and sets the time of the next claim. That is at
// once if now is true and a job is due, or if the last claim began above that job, or before
// it was due; else it is when the job is due, a poll from now at most.
func (l *loop) peek(ctx context.Context, now bool) {
	ctx, cancel := context.WithTimeout(ctx, l.w.limit)
	defer cancel()
	begin := time.Now()
	low, poll := l.lanes.walkIsLow(begin), l.w.cfg.pollInterval
	p, err := onLoop(ctx, l, func(conn *sql.Conn) (queue.Peek, error) {
		return l.w.queue.Peek(ctx, l.w.planned(conn, conn), l.name, l.lanes.next(low, begin), l.w.kinds, poll)
	})
	l.peekedAt = time.Now()
	l.peekTook = l.peekedAt.Sub(begin)
	l.failed(err)
	l.pollAt = l.peekedAt.Add(poll - time.Duration(rand.Float64()*float64(poll)/4))
	if err != nil {
		return
	}
	if low && (p.None || p.Due > 0) {
		l.lanes.nothingDue(begin, l.peekedAt)
	}
	wasCapped := l.capped()
	l.change(func(s *QueueStatus) { s.Capped, s.Paused = p.Capped, p.Paused })
	switch {
	case p.None || p.Paused:
	case p.Due > 0:
		l.pollAt = earlier(l.pollAt, l.peekedAt.Add(p.Due))
	case now || low && !l.low || p.Capped && !wasCapped || l.peekedAt.Add(p.Due).After(l.walkAt):
		if l.hungry = true; low {
			l.lanes.lowDue = time.Time{} // above the floors there may be nothing
		}
	}
	if p.None && l.peekedAt.After(l.unknownAt) {
		l.unknownAt = l.peekedAt.Add(unknownEvery)
		l.lookForUnknown(ctx)
	}
}

// lookForUnknown tells of kinds that wait and that there are no handlers for.
func (l *loop) lookForUnknown(ctx context.Context) {
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
		tell(l.w.voice, "UnknownKinds", func(o *Observer) func(Unknown) { return o.UnknownKinds }, Unknown{l.name, kinds})
	}
}
