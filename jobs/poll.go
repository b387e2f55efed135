package jobs

import (
	"context"
	"database/sql"
	"time"

	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/queue"
)

const (
	// wantEvery is how often an idle loop that listens requests notifications of new jobs.
	wantEvery = 10 * time.Second
	// wantLasts is how long a request for notifications holds at least, see [queue.Queue.Want].
	wantLasts = 15 * time.Second
)

// nextPoll returns the pause after a poll of an idle queue, and the state after the poll. all is
// false if the poll may have missed jobs: jobs that were released or committed late, or if
// notifications do not arrive. The pause doubles only after polls that saw all jobs and found none
// due. A due job waits for an event without a notification, such as the end of a job of a capped
// queue. The loop starts the jobs that are due in the pause at their time. random is in [0, 1).
func nextPoll(p jobrun.Polls, found queue.Peek, all bool, random float64) (time.Duration, jobrun.Polls) {
	due := !found.None && !found.Paused
	pause, p := p.Next(all && (!due || found.Due > 0), random)
	if due && found.Due > 0 {
		pause = min(pause, found.Due)
	}
	return pause, p
}

// soon makes the next poll come after the first pause at the latest.
func (l *loop) soon(now time.Time) {
	l.pollAt, l.polls = l.polls.Soon(now, l.pollAt)
}

// handleNotices handles the flags that other goroutines have set.
func (l *loop) handleNotices(now time.Time) {
	if l.unwanted.Swap(false) {
		l.wantedAt, l.wantAt = time.Time{}, time.Time{}
	}
	notifyDown := l.w.listener.IsDown()
	if l.back.Swap(false) || notifyDown && !l.notifyDown {
		l.soon(now)
	}
	l.notifyDown = notifyDown
}

// requestPoll makes the loop poll soon. It is called when jobs have come back to the queue.
func (l *loop) requestPoll() {
	l.back.Store(true)
	l.wake()
}

// nextWant returns when to request notifications next, which is not in the pause after a failure.
func (l *loop) nextWant() time.Time {
	if l.wantAt.Before(l.pausedTo) {
		return l.pausedTo
	}
	return l.wantAt
}

func (l *loop) wantDue(now time.Time) bool {
	return l.w.cfg.notify != "" && !now.Before(l.nextWant())
}

// want requests notifications of new jobs. If the previous request may have lapsed, the loop claims
// again: jobs enqueued meanwhile were not notified.
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
		l.claimable = true
	}
	l.wantedAt, l.wantAt = begin, begin.Add(wantEvery)
}
