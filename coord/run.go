package coord

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/backoff"
)

const (
	// looking is the pause between two looks.
	looking = 400 * time.Millisecond
	// expecting is the pause while something is about to happen.
	expecting = 50 * time.Millisecond
	// newcomer is how long a worker without units expects some after its start.
	newcomer = 2 * time.Second
	// sound is the age from which a session's end says nothing about the next.
	sound = time.Second
)

var errNotLeader = errors.New("coord: the leadership was lost")

// Run takes part until ctx ends, then returns nil: it sends heartbeats, learns
// what is assigned to this worker, and assigns while it is the leader. When the
// database fails, it tries again for ever, with backoff.
func (c *Coordinator) Run(ctx context.Context) error {
	if err := c.cfg.validate(); err != nil {
		return err
	}
	expiry := time.AfterFunc(c.cfg.HeartbeatTimeout, c.distrust)
	defer expiry.Stop()
	for failures := 0; ; {
		opened := time.Now()
		err := c.live(ctx, expiry)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(opened) > sound {
			failures = 0
		}
		failures++
		c.interrupted(err)
		c.cfg.Logger.Error(ctx, "coordination interrupted, will start anew", "worker_id", c.cfg.ID, "error", err, "failures", failures)
		if !backoff.Sleep(ctx, pause(failures, rand.Float64())) {
			return nil
		}
	}
}

// pause is the wait after the n-th failure in a row. A connection that was
// merely cut is replaced at once, before anyone takes its end for a death.
func pause(n int, random float64) time.Duration {
	if n == 1 {
		return time.Duration(random * float64(expecting))
	}
	return backoff.Delay(n-1, 500*time.Millisecond, 30*time.Second, random)
}

// live runs one session until it fails or ctx ends.
func (c *Coordinator) live(ctx context.Context, expiry *time.Timer) error {
	s := c.session
	c.session = nil
	if s == nil {
		var err error
		if s, err = c.open(ctx); err != nil {
			return err
		}
	}
	defer s.close()
	for {
		wait, err := c.round(ctx, s)
		if err != nil {
			return err
		}
		expiry.Reset(time.Until(s.beaten.Add(c.cfg.HeartbeatTimeout)) + time.Millisecond)
		if !c.sleep(ctx, wait) {
			return ctx.Err()
		}
	}
}

func (c *Coordinator) sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.wake:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// round does once all there is to do, and returns how long to wait for the
// next.
func (c *Coordinator) round(ctx context.Context, s *session) (time.Duration, error) {
	if err := c.beat(ctx, s); err != nil {
		return 0, err
	}
	led := s.leads
	v, err := s.look(ctx)
	if err != nil {
		return 0, err
	}
	if led && !v.leads {
		return 0, errNotLeader
	}
	s.leads = v.leads
	c.deliver(v.mine)
	wait := looking
	switch {
	case !v.registered:
		s.beaten = time.Time{} // registers in the next round
		wait = 0
	case v.leads && !led:
		c.cfg.Logger.Info(ctx, "this worker leads now", "worker_id", c.cfg.ID)
		wait = 0 // with eyes for everyone
	case v.leads:
		written, err := c.rebalance(ctx, s, alive(v.nodes))
		if err != nil {
			return 0, err
		}
		if written {
			wait = 0
		}
	case len(v.mine) == 0 && time.Since(s.opened) < newcomer:
		wait = expecting
	}
	c.settled(v.leads)
	return min(wait, time.Until(s.beaten.Add(c.cfg.HeartbeatInterval))), nil
}

// beat sends a heartbeat when it is due, and registers anew if the row is gone.
func (c *Coordinator) beat(ctx context.Context, s *session) error {
	if time.Since(s.beaten) < c.cfg.HeartbeatInterval {
		return nil
	}
	there, err := s.beat(ctx)
	if err != nil {
		return err
	}
	if !there {
		c.cfg.Logger.Info(ctx, "this worker's row is gone, registers anew", "worker_id", c.cfg.ID)
		return c.register(ctx, s)
	}
	c.trust(s.beaten)
	return nil
}

func alive(nodes []node) []Member {
	var members []Member
	for _, n := range nodes {
		if n.Fresh {
			members = append(members, Member{ID: n.ID, Units: n.Units})
		}
	}
	slices.SortFunc(members, func(a, b Member) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	return members
}

// rebalance assigns the units to members if that is due, and returns whether
// it wrote something.
func (c *Coordinator) rebalance(ctx context.Context, s *session, members []Member) (bool, error) {
	same := slices.EqualFunc(members, s.balanced, func(a, b Member) bool { return a.ID == b.ID && slices.Equal(a.Units, b.Units) })
	if same && time.Since(s.checked) < c.cfg.RebalanceInterval {
		return false, nil
	}
	owners, err := s.assignments(ctx)
	if err != nil {
		return false, err
	}
	changes, unowned := plan(members, owners)
	c.show(ctx, unowned)
	if len(changes) > 0 {
		leads, err := s.assign(ctx, changes)
		if err != nil {
			return false, err
		}
		if !leads {
			return false, errNotLeader
		}
		c.cfg.Logger.Info(ctx, "consumers assigned", "workers", len(members), "changes", len(changes))
	}
	s.balanced, s.checked = members, time.Now()
	return len(changes) > 0, nil
}

// plan compares what should be with what is: the changes in order of unit, and
// the units that nobody has code for.
func plan(members []Member, owners map[string]uuid.UUID) (changes []change, unowned []string) {
	var units []string
	for _, m := range members {
		units = append(units, m.Units...)
	}
	wanted := Assign(members, units)
	for unit, worker := range wanted {
		if is, ok := owners[unit]; !ok || is != worker {
			changes = append(changes, change{unit, worker})
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return bytes.Compare([]byte(a.Unit), []byte(b.Unit)) })
	for unit := range owners {
		if _, ok := wanted[unit]; !ok {
			unowned = append(unowned, unit)
		}
	}
	slices.Sort(unowned)
	return changes, unowned
}

// show takes note of the units that nobody has code for, and logs each once.
func (c *Coordinator) show(ctx context.Context, unowned []string) {
	c.mu.Lock()
	before := c.status.Unowned
	c.status.Unowned = unowned
	c.mu.Unlock()
	for _, u := range unowned {
		if !slices.Contains(before, u) {
			c.cfg.Logger.Info(ctx, "no live worker has code for this consumer, its assignment stays as it is", "consumer", u)
		}
	}
}

// settled takes note that everything works.
func (c *Coordinator) settled(leads bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.Leader, c.status.LastError = leads, nil
	if !leads {
		c.status.Unowned = nil
	}
}

// interrupted takes note that something does not.
func (c *Coordinator) interrupted(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.Leader, c.status.LastError, c.status.Unowned = false, err, nil
}
