package jobs

import (
	"context"
	"database/sql"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/queue"
)

const (
	// wantEvery is how often an idle loop that listens requests notifications of new jobs.
	wantEvery = 10 * time.Second
	// wantLasts is how long a request for notifications holds at least, see [queue.Queue.Want].
	wantLasts = 15 * time.Second
)

// polls decides when an idle queue is polled. Notifications and known due times wake the loop as
// well.
type polls struct {
	first, longest time.Duration // WithPollInterval, WithMaxPollInterval
	quiet          int           // consecutive polls that have found no job to wait for
}

// ahead returns the longest duration of the next pause. A poll reads this far ahead for jobs that
// are due later. The loop starts these jobs at their time.
func (p polls) ahead() time.Duration { return backoff.Doubled(p.quiet, p.first, p.longest) }

// next returns the pause after a poll, and the state after the poll. all is false if the poll may
// have missed jobs: jobs that were released or committed late, or if notifications do not arrive.
// The pause doubles only after polls that saw all jobs and found none due. A due job waits for an
// event without a notification, such as the end of a job of a capped queue. random is in [0, 1).
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

// soon makes the next poll come after the first pause at the latest.
func (l *loop) soon(now time.Time) {
	l.polls.quiet = 0
	l.pollAt = earlier(l.pollAt, now.Add(l.polls.first))
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
