package jobs

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pgfrontier/worker/internal/batch"
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

// claim sends one claim. The claim begins above the floors of the lanes. It begins at the bottom if
// a low claim is due, or if it leaves out jobs by a condition. If the database refuses one of the
// jobs, the claim takes the others.
func (c *claimer) claim(ctx context.Context, want, slots int, condition ClaimFilter) (jobs []queue.Job, err error) {
	begin := time.Now()
	d := queue.Demand{
		Worker: c.source.ID, Claim: rand.Int64N(1<<63-1) + 1, Queue: c.name, Kinds: c.kinds,
		Limit: want, Start: slots, Condition: condition.Condition, Args: condition.Args,
	}
	if out := c.refused.Begin(begin); len(out) > 0 {
		d = d.But(out)
	}
	picky := d.Condition != ""
	c.low = condition.Condition != "" || !begin.Before(c.lanes.lowDue)
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	jobs, limit, err := c.send(ctx, d)
	if pgdriver.FaultOf(err) != pgdriver.FaultServer && pgdriver.SQLState(err) != pgdriver.QueryCanceled {
		picky = true
		jobs, err = c.apart(ctx, d, err)
	}
	now := time.Now()
	c.took, c.claimedAt = now.Sub(begin), now
	if err != nil {
		return nil, err
	}
	if limit == 0 {
		c.walkAt = begin // a claim without room takes nothing
	} else {
		c.lanes.claimed(jobs, limit, c.low, picky, c.walkAt, c.walkedAt)
	}
	ids := make([]int64, len(jobs))
	bytes := 0
	for i, j := range jobs {
		ids[i] = j.ID
		bytes += len(j.Args)
	}
	c.refused.Partly(ids)
	c.refused.End()
	if len(jobs) > 0 {
		c.width = bytes / len(jobs)
		c.observers.Notify(observe.JobsClaimed{Queue: c.name, Jobs: len(jobs), Took: c.took})
		c.change(func(s *QueueStatus) { s.Claimed += int64(len(jobs)) })
	}
	return jobs, nil
}

// send sends a claim. room is how many jobs the caps allow.
func (c *claimer) send(ctx context.Context, d queue.Demand) (jobs []queue.Job, room int, err error) {
	err = c.on(ctx, func(conn *sql.Conn) (err error) {
		if c.status().Capped {
			jobs, room, err = c.claimCapped(ctx, conn, d)
			return err
		}
		room = d.Limit
		jobs, err = c.walk(ctx, conn, conn, d)
		return err
	})
	return jobs, room, err
}

// apart claims the jobs of a demand that the database does not refuse, after it has refused them
// together with the error why. A statement about one job may fail, such as one whose trigger raises
// an error: this must cost the job alone. The next claims leave the refused jobs out for a while.
func (c *claimer) apart(ctx context.Context, d queue.Demand, why error) (jobs []queue.Job, err error) {
	ids, err := onLoop(ctx, c.shared, func(conn *sql.Conn) ([]int64, error) {
		d.Lanes = c.lanes.next(c.low, time.Now())
		return c.queue.Due(ctx, c.planned(conn, conn), d)
	})
	if err != nil {
		return nil, why
	}
	started := 0
	err = batch.Each(ids, func(part []int64) error {
		more, _, err := c.send(ctx, d.Only(part, max(0, d.Start-started)))
		jobs, started = append(jobs, more...), started+min(len(more), max(0, d.Start-started))
		return err
	}, c.refuse)
	if len(jobs) > 0 {
		return jobs, nil // a later claim reports the error of all
	}
	return nil, err
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

// before calls the user's BeforeClaim hook. skip reports whether to leave out this claim.
func (c *claimer) before(ctx context.Context) (f ClaimFilter, skip bool) {
	hook := c.cfg.hooks.BeforeClaim
	if hook == nil {
		return f, false
	}
	if !c.observers.Call("BeforeClaim", func() { f = hook(ctx, c.name) }) {
		return ClaimFilter{}, true
	}
	f.Condition = queue.Given(f.Condition)
	return f, f.Skip
}
