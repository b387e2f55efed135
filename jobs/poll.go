package jobs

import (
	"context"
	"database/sql"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/queue"
)

const (
	// wantEvery is how often an idle loop that listens asks to be told of new jobs.
	wantEvery = 10 * time.Second
	// wantLasts is how long they are told at least, see [queue.Queue.Want].
	wantLasts = 15 * time.Second
)

// polls says when an idle queue is polled. What it is told, and by when the jobs that it knows
// of are due, wakes the loop besides.
type polls struct {
	first, longest time.Duration // WithPollInterval, WithMaxPollInterval
	quiet          int           // polls in a row that have found nothing to wait for
}

// ahead is how long the next pause lasts at most. A poll looks so far ahead for jobs that are due
// later: they are started at their time.
func (p polls) ahead() time.Duration { return backoff.Doubled(p.quiet, p.first, p.longest) }

// next returns the pause after a poll, and what to remember of it. all is false if the poll
// passed over jobs that are given back, or committed late, or if notifications do not arrive. The
// pause doubles only after polls that saw everything and found no due job: a due job waits for
// something that is not notified, such as the end of a job of a capped queue. random is in [0, 1).
func (p polls) next(found queue.Peek, all bool, random float64) (time.Duration, polls) {
	due := !found.None && !found.Paused
	if !all || due && found.Due <= 0 {
		p.quiet = 0
	}
	pause := p.ahead()
	pause -= time.Duration(random * float64(pause) / 4)
	if due && found.Due > 0 {
		pause = min(pause, found.Due)
	}
	if all && (!due || found.Due > 0) {
		p.quiet++
	}
	return pause, p
}

// soon makes the next poll come no later than after the first pause.
func (l *loop) soon(now time.Time) {
	l.polls.quiet = 0
	l.pollAt = earlier(l.pollAt, now.Add(l.polls.first))
}

// heed takes note of what others have told the loop.
func (l *loop) heed(now time.Time) {
	if l.unwanted.Swap(false) {
		l.wantedAt, l.wantAt = time.Time{}, time.Time{}
	}
	deaf := l.w.deaf()
	if l.back.Swap(false) || deaf && !l.deaf {
		l.soon(now)
	}
	l.deaf = deaf
}

// come makes the loop look again soon: jobs have come back to its queue.
func (l *loop) come() {
	l.back.Store(true)
	l.nudge()
}

// nextWant returns when to ask to be told of new jobs: not in the pause after a failure.
func (l *loop) nextWant() time.Time {
	if l.wantAt.Before(l.pausedTo) {
		return l.pausedTo
	}
	return l.wantAt
}

func (l *loop) wantDue(now time.Time) bool {
	return l.w.cfg.notify != "" && !now.Before(l.nextWant())
}

// want asks to be told of new jobs. The loop claims again if the wish before this one may have
// lapsed: what was enqueued meanwhile is not told.
func (l *loop) want(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, l.w.limit)
	defer cancel()
	begin := time.Now()
	err := l.on(ctx, func(conn *sql.Conn) error { return l.w.queue.Want(ctx, l.w.planned(conn, conn), l.name) })
	l.failed(err)
	if err != nil {
		l.wantedAt = time.Time{}
		return
	}
	if time.Since(l.wantedAt) >= wantLasts {
		l.hungry = true
	}
	l.wantedAt, l.wantAt = begin, begin.Add(wantEvery)
}
