package jobs

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/batch"
	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/observe"
)

const (
	// unknownEvery is how often an idle loop reads the kinds without handlers.
	unknownEvery = 10 * time.Second
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

// poller finds out when there are jobs to claim.
type poller struct {
	*shared
	claimer *claimer

	polls      jobrun.Polls // WithPollInterval, WithMaxPollInterval
	at         time.Time    // when to poll next
	peekTook   time.Duration
	peekedAt   time.Time
	isDown     func() bool // reports whether notifications do not arrive
	notifyDown bool        // they did not in the last turn
	wantedAt   time.Time   // when notifications were last requested; zero: never, or the request failed
	wantAt     time.Time   // when to request them again
	unknownAt  time.Time
}

// handleNotices handles the flags that other goroutines have set.
func (p *poller) handleNotices(now time.Time) {
	if p.unwanted.Swap(false) {
		p.wantedAt, p.wantAt = time.Time{}, time.Time{}
	}
	notifyDown := p.isDown()
	if p.back.Swap(false) || notifyDown && !p.notifyDown {
		p.at, p.polls = p.polls.Soon(now, p.at)
	}
	p.notifyDown = notifyDown
}

// nextWant returns when to request notifications next, which is not in the pause after a failure.
func (p *poller) nextWant() time.Time {
	if p.wantAt.Before(p.pausedTo) {
		return p.pausedTo
	}
	return p.wantAt
}

func (p *poller) wantDue(now time.Time) bool {
	return p.cfg.notify != "" && !now.Before(p.nextWant())
}

// want requests notifications of new jobs. If the previous request may have lapsed, the loop claims
// again: jobs enqueued meanwhile were not notified.
func (p *poller) want(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	begin := time.Now()
	err := p.on(ctx, func(conn *sql.Conn) error { return p.queue.Want(ctx, p.planned(conn, conn), p.name) })
	p.failed(err)
	if err != nil {
		p.wantedAt = time.Time{}
		return
	}
	if time.Since(p.wantedAt) >= wantLasts {
		p.claimable = true
	}
	p.wantedAt, p.wantAt = begin, begin.Add(wantEvery)
}

// idle records that the claim found fewer jobs than slots, and reads when more jobs are due.
func (p *poller) idle(ctx context.Context, found int) {
	p.claimable = false
	if found > 0 {
		p.polls.Quiet = 0
	}
	if p.wantDue(time.Now()) {
		if p.want(ctx); p.claimable {
			return
		}
	}
	pause := min(10*p.peekTook, p.polls.First)
	if found == 0 && p.refused.Err() != nil {
		pause = p.polls.First // a peek also finds the refused jobs, which claims leave out
	}
	if p.at = p.peekedAt.Add(pause); !time.Now().Before(p.at) {
		p.peek(ctx, found > 0)
	}
}

// peek reads when the next job is due, and sets the time of the next claim. The next claim comes at
// once in three cases. A job is due and now is true. A job is due and the last claim began above
// the job. The job became due after the last claim. Otherwise the next claim comes when the job is
// due, or after the pause of nextPoll.
func (p *poller) peek(ctx context.Context, now bool) {
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	begin := time.Now()
	low := p.claimer.lanes.walkIsLow(begin)
	found, err := onLoop(ctx, p.shared, func(conn *sql.Conn) (queue.Peek, error) {
		return p.queue.Peek(ctx, p.planned(conn, conn), p.name, p.claimer.lanes.next(low, begin), p.kinds, p.polls.Ahead())
	})
	p.peekedAt = time.Now()
	p.peekTook = p.peekedAt.Sub(begin)
	if err == nil && low && (found.None || found.Due > 0) {
		p.refused = batch.Refused[int64]{} // no refused job is due any more
	}
	p.failed(err)
	if err != nil {
		p.polls.Quiet = 0
		p.at = p.claimer.lanes.nextPeek(false, p.peekedAt.Add(p.polls.First))
		return
	}
	pause, polls := nextPoll(p.polls, found, low && !p.notifyDown, rand.Float64())
	p.polls, p.at = polls, p.claimer.lanes.nextPeek(low, p.peekedAt.Add(pause))
	if low && (found.None || found.Due > 0) {
		p.claimer.lanes.nothingDue(begin, p.peekedAt)
	}
	wasCapped := p.status().Capped
	p.change(func(s *QueueStatus) { s.Capped, s.Paused = found.Capped, found.Paused })
	switch {
	case found.None || found.Paused || found.Due > 0:
	case now || low && !p.claimer.low || found.Capped && !wasCapped || p.peekedAt.Add(found.Due).After(p.claimer.walkAt):
		if p.claimable = true; low {
			p.claimer.lanes.lowDue = time.Time{} // above the floors there may be no job
		}
	}
	if found.None && p.peekedAt.After(p.unknownAt) {
		p.unknownAt = p.peekedAt.Add(unknownEvery)
		p.checkUnknown(ctx)
	}
}

// checkUnknown reports the kinds of due jobs for which this worker has no handler.
func (p *poller) checkUnknown(ctx context.Context) {
	kinds, err := onLoop(ctx, p.shared, func(conn *sql.Conn) ([]string, error) {
		return p.queue.Unknown(ctx, p.planned(conn, conn), p.name, p.kinds)
	})
	if err != nil {
		p.failed(err)
		return
	}
	changed := false
	p.change(func(s *QueueStatus) {
		changed = !slices.Equal(s.UnknownKinds, kinds)
		s.UnknownKinds = kinds
	})
	if changed && len(kinds) > 0 {
		p.observers.Notify(observe.UnknownKinds{Queue: p.name, Kinds: kinds})
	}
}
