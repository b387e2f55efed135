package coord

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/liveness"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

const (
	// pollPause is the approximate pause between two polls.
	pollPause = 800 * time.Millisecond
	// roundTimeout bounds a running round when the worker stops.
	roundTimeout = time.Second
	// replacePause bounds the pause before a new session after a single failure.
	replacePause = 50 * time.Millisecond
	// soundAge is the age at which a working session resets the count of failures.
	soundAge = time.Second
)

// Run takes part in the coordination until ctx ends, then returns nil. It sends heartbeats,
// reads this worker's assignments, and assigns units while this worker leads. When the
// database fails, Run retries without end, with backoff. Run returns an error only if no retry
// can succeed.
func (c *Coordinator) Run(ctx context.Context) error {
	if err := c.cfg.validate(); err != nil {
		return err
	}
	defer c.setLeader(false)
	for failures, idle := 0, 0; ; {
		c.record(func(s *Status) { s.LastTurn = time.Now() })
		logins := max(failures-1-idle, 0) // failed logins: the first failure was the end of a session
		err := c.live(ctx, logins, func() {
			if failures > 0 && c.cfg.OnBack != nil {
				c.cfg.OnBack()
			}
			failures = 0
		})
		if ctx.Err() != nil {
			return nil
		}
		if failures++; failures == 1 {
			idle = c.cfg.DB.Stats().Idle // each idle connection may be dead or lead to a standby
		}
		c.record(func(s *Status) { s.LastError = err })
		c.setLeader(false)
		if c.cfg.OnFailure != nil {
			c.cfg.OnFailure(err)
		}
		if errors.Is(err, errTransactionPooling) {
			return err
		}
		if !backoff.Sleep(ctx, pause(max(failures-idle, 1), rand.Float64())) {
			return nil
		}
	}
}

// pause returns the wait after the n-th failure in a row. random is in [0, 1). After a single
// cut, the connection is replaced at once, before other workers count this worker as dead.
func pause(n int, random float64) time.Duration {
	if n == 1 {
		return time.Duration(random * float64(replacePause))
	}
	return backoff.Delay(n-1, 500*time.Millisecond, 5*time.Second, random)
}

// live runs one session until the session fails or ctx ends. failed is the number of failed
// logins in a row. live calls healthy when the session has reached soundAge.
func (c *Coordinator) live(ctx context.Context, failed int, healthy func()) (err error) {
	s := c.registered
	c.registered = nil
	if s == nil {
		if s, err = c.session(c.alive.Reopen(ctx, failed)); err != nil {
			return err
		}
	}
	defer s.Close()
	// A running round is not cancelled: its statements must not take effect after Leave.
	round, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(roundTimeout, cancel) })()
	for {
		c.record(func(s *Status) { s.LastTurn = time.Now() })
		wait, err := c.round(round, s)
		if err != nil {
			return wrap(err)
		}
		c.record(func(now *Status) { c.lease, now.LastError = s.lease, nil })
		c.setLeader(s.leads)
		if time.Since(s.Opened) >= soundAge {
			healthy()
		}
		woken, ok := c.wake.Sleep(ctx, min(wait, time.Until(s.Beaten.Add(c.cfg.HeartbeatInterval))))
		if !ok {
			s.Unlock()
			return ctx.Err()
		}
		if woken {
			s.checked = time.Time{}
		}
	}
}

// untilPoll returns the pause before the next poll. A whole number of equal pauses leads to
// the next heartbeat, so that the heartbeat needs no extra poll.
func (s *session) untilPoll() time.Duration {
	left := time.Until(s.Beaten.Add(s.cfg.HeartbeatInterval))
	return left / max(1, (left+pollPause/2)/pollPause)
}

// round runs one round and returns the wait before the next.
func (c *Coordinator) round(ctx context.Context, s *session) (wait time.Duration, err error) {
	v, err := s.poll(ctx)
	if err != nil {
		return 0, err
	}
	if !v.Registered {
		if c.cfg.OnReregister != nil {
			c.cfg.OnReregister()
		}
		if err := s.Register(ctx); err != nil {
			return 0, err
		}
		c.announce(ctx, s)
	}
	c.renew(s.Beaten)
	if v.Drain && c.cfg.OnDrain != nil {
		c.cfg.OnDrain() // first, so that this worker starts none of its new units
	}
	c.setAssigned(v.mine)
	led := s.leads
	s.leads = v.leads
	switch {
	case v.leads && !led:
		return 0, nil // the next round reads all workers
	case led && !v.leads:
		s.stepDown()
	case !v.Registered:
		return 0, nil // this poll does not show all workers
	case v.leads:
		return c.lead(ctx, s, v)
	}
	return s.untilPoll(), s.endSilent(ctx)
}

// lead is the leader's part of a round.
func (c *Coordinator) lead(ctx context.Context, s *session, v view) (wait time.Duration, err error) {
	now := time.Now()
	watch, nodes, again := s.watch.Judge(v.nodes, now)
	alive := s.members(nodes)
	s.watch = watch
	if ahead := watch.Ahead(v.nodes, now); len(ahead) > 0 {
		if err := s.SetBack(ctx, ahead); err != nil {
			return 0, err
		}
	}
	if c.cfg.OnMembers != nil {
		c.cfg.OnMembers(ids(v.nodes), ids(nodes))
	}
	// A worker that replaces a dead one may register too early to remove the dead worker's
	// row. An error of the server, which has an SQLSTATE, leaves the session usable.
	if len(nodes) < len(v.nodes) && now.Sub(c.cleaned) >= c.cfg.HeartbeatTimeout {
		if err := c.clean(ctx, s); err != nil && pgdriver.SQLState(err) == "" {
			return 0, err
		}
	}
	wait = s.untilPoll()
	if again {
		wait = liveness.Confirmation
	}
	if !c.cfg.assigns() {
		return wait, nil
	}
	if v.is.owners == nil {
		if !sameMembers(alive, s.balanced) {
			s.checked, wait = time.Time{}, 0 // the next poll reads the assignments
		}
		return wait, nil
	}
	return c.rebalance(ctx, s, alive, v.is, wait)
}

// rebalance plans the assignments and writes those that change. wait is the wait before the next
// round if nothing changes.
func (c *Coordinator) rebalance(ctx context.Context, s *session, alive []member, is assignments, wait time.Duration) (time.Duration, error) {
	n := plan(alive, is, c.cfg.Sticky)
	c.watchIdle(s, idle(alive, is.owners, n))
	s.balanced, s.checked = alive, time.Now()
	if len(n.changes)+len(n.gone) == 0 {
		return wait, nil
	}
	leads, written, err := s.assign(ctx, n)
	switch {
	case err != nil:
		return 0, err
	case !leads:
		s.stepDown()
		return s.untilPoll(), nil
	case written > 0:
		c.announce(ctx, s)
		if c.cfg.OnAssigned != nil {
			c.cfg.OnAssigned(len(alive), written)
		}
		wait = 0 // this worker may have new assignments
	}
	if written < len(n.changes) {
		s.checked = time.Time{} // another transaction holds the remaining rows
	}
	return wait, nil
}
