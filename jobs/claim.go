package jobs

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/observe"
)

// claimBytes bounds the bytes of arguments that a claim is to return. The size is estimated from the
// last claim.
const claimBytes = 32 << 20

// claimer claims the jobs of a queue.
type claimer struct {
	*shared
	lanes    lanes
	low      bool      // the last claim began at the bottom of the lanes
	walkAt   time.Time // when the last claim was sent
	walkedAt time.Time // when the last claim was answered

	took      time.Duration // duration of the last claim, including waits
	claimedAt time.Time
	width     int // bytes of arguments per job in the last claim
}

// most bounds the jobs of a claim by WithClaimBatch, and by the bytes of their arguments.
func (c *claimer) most(want int) int {
	if c.width > 0 {
		want = max(1, min(want, claimBytes/c.width))
	}
	if most := c.cfg.claimBatch; most > 0 {
		want = min(want, most)
	}
	return want
}

// gathers reports whether the next claim should wait for more free slots. It waits if less than
// half of the slots are free and the last claim was at most [jobrun.Gather] ago.
func (c *claimer) gathers(now time.Time, want int) bool {
	return want < (c.capacity+c.cfg.prefetch+1)/2 && now.Before(c.gathered())
}

// gathered returns when a claim waits for no more slots.
func (c *claimer) gathered() time.Time { return c.claimedAt.Add(min(c.took, jobrun.Gather)) }

// claim sends one claim. The claim begins above the floors of the lanes. It begins at the
// bottom if a low claim is due, or if the user's filter has a condition.
func (c *claimer) claim(ctx context.Context, want, slots int, condition ClaimFilter) (jobs []queue.Job, err error) {
	begin := time.Now()
	c.low = condition.Condition != "" || !begin.Before(c.lanes.lowDue)
	d := queue.Demand{
		Worker: c.source.ID, Claim: rand.Int64N(1<<63-1) + 1, Queue: c.name, Kinds: c.kinds,
		Limit: want, Start: slots, Condition: condition.Condition, Args: condition.Args,
	}
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	limit := want
	if c.status().Capped {
		err = c.on(ctx, func(conn *sql.Conn) (err error) {
			jobs, limit, err = c.claimCapped(ctx, conn, d)
			return err
		})
	} else {
		jobs, err = onLoop(ctx, c.shared, func(conn *sql.Conn) ([]queue.Job, error) { return c.walk(ctx, conn, conn, d) })
	}
	now := time.Now()
	c.took, c.claimedAt = now.Sub(begin), now
	if err != nil {
		return nil, err
	}
	if limit == 0 {
		c.walkAt = begin // a claim without room takes nothing
	} else {
		c.lanes.claimed(jobs, limit, c.low, condition.Condition != "", c.walkAt, c.walkedAt)
	}
	if len(jobs) > 0 {
		bytes := 0
		for _, j := range jobs {
			bytes += len(j.Args)
		}
		c.width = bytes / len(jobs)
		c.observers.Notify(observe.JobsClaimed{Queue: c.name, Jobs: len(jobs), Took: c.took})
		c.change(func(s *QueueStatus) { s.Claimed += int64(len(jobs)) })
	}
	return jobs, nil
}

// claimCapped claims under the caps. It holds the caps' lock until the claim is committed. room is
// how many jobs the caps allow; if room is 0, claimCapped claims nothing.
func (c *claimer) claimCapped(ctx context.Context, conn *sql.Conn, d queue.Demand) (jobs []queue.Job, room int, err error) {
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return nil, 0, fmt.Errorf("jobs: claim from queue %q: %w", c.name, err)
	}
	defer func() { _ = tx.Rollback() }() // a no-op after the commit
	if room, d.Caps, err = c.queue.Room(ctx, c.planned(conn, tx), c.name, d.Limit); err != nil || room == 0 {
		return nil, 0, err
	}
	d.Limit, d.Start = room, min(room, d.Start)
	if jobs, err = c.walk(ctx, conn, tx, d); err != nil {
		return nil, 0, err
	}
	if err := tx.Commit(); err != nil {
		return nil, 0, fmt.Errorf("jobs: claim from queue %q: commit: %w", c.name, err)
	}
	return jobs, room, nil
}

// walk sends a claim and measures its time. The time includes no wait for a connection. It includes
// no wait for the lock of a cap either: a worker that stands still may hold the lock.
func (c *claimer) walk(ctx context.Context, conn *sql.Conn, on Querier, d queue.Demand) ([]queue.Job, error) {
	c.walkAt = time.Now()
	d.Lanes = c.lanes.next(c.low, c.walkAt)
	jobs, err := c.queue.Claim(ctx, c.planned(conn, on), d)
	c.walkedAt = time.Now()
	return jobs, err
}

// conditionOffset is how many parameters a claim has before the parameters of a condition.
const conditionOffset = 7

// before calls the user's BeforeClaim hook. skip reports whether to leave out this claim.
func (c *claimer) before(ctx context.Context) (f ClaimFilter, skip bool) {
	hook := c.cfg.hooks.BeforeClaim
	if hook == nil {
		return f, false
	}
	if !c.observers.Call("BeforeClaim", func() { f = hook(ctx, c.name) }) {
		return ClaimFilter{}, true
	}
	f.Condition = pgdriver.ShiftParameters(f.Condition, conditionOffset)
	return f, f.Skip
}
