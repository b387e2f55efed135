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
	// looking is about the pause between two looks.
	looking = 800 * time.Millisecond
	// roundTimeout bounds a round that has begun when the worker stops.
	roundTimeout = time.Second
	// replacing bounds the pause before a new session after a single failure.
	replacing = 50 * time.Millisecond
	// sound is the age at which a session that works has ended the row of
	// failures before it.
	sound = time.Second
)

// Run takes part until ctx ends, then returns nil: it sends heartbeats, learns
// what is assigned to this worker, and assigns while it leads. When the
// database fails, it tries again for ever, with backoff. It returns an error
// only for what no retry can mend.
func (c *Coordinator) Run(ctx context.Context) error {
	if err := c.cfg.validate(); err != nil {
		return err
	}
	defer c.setLeader(false)
	for failures, idle := 0, 0; ; {
		c.turns()
		logins := max(failures-1-idle, 0) // that failed: the first failure was a session's end
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
			idle = c.cfg.DB.Stats().Idle // each may be dead, or lead to a standby
		}
		c.fails(err)
		if c.cfg.OnFailure != nil {
			c.cfg.OnFailure(err)
		}
		if errors.Is(err, ErrTransactionPooling) {
			return err
		}
		if !backoff.Sleep(ctx, pause(max(failures-idle, 1), rand.Float64())) {
			return nil
		}
	}
}

// pause is the wait after the n-th failure in a row, random in [0, 1). A
// connection that was merely cut is replaced at once, before anyone takes its
// end for this worker's.
func pause(n int, random float64) time.Duration {
	if n == 1 {
		return time.Duration(random * float64(replacing))
	}
	return backoff.Delay(n-1, 500*time.Millisecond, 5*time.Second, random)
}

// live runs one session, after some logins in a row that failed, until it fails or ctx
// ends. It calls healthy when the session has proven sound.
func (c *Coordinator) live(ctx context.Context, failed int, healthy func()) (err error) {
	s := c.registered
	c.registered = nil
	if s == nil {
		if s, err = c.reopen(ctx, failed); err != nil {
			return err
		}
	}
	defer s.Close()
	// A round that has begun is not broken off: what the server is about to do
	// must not come after Leave.
	round, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(roundTimeout, cancel) })()
	for {
		c.turns()
		wait, err := c.round(round, s)
		if err != nil {
			return wrap(err)
		}
		c.works(s)
		if time.Since(s.Opened) >= sound {
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

// untilLook is the pause before the next look. A whole number of them, of about
// the same length, lead to the next heartbeat, which then needs no look of its
// own.
func (s *session) untilLook() time.Duration {
	left := time.Until(s.Beaten.Add(s.cfg.HeartbeatInterval))
	return left / max(1, (left+looking/2)/looking)
}

// round does once all there is to do, and returns how long to wait for the
// next.
func (c *Coordinator) round(ctx context.Context, s *session) (wait time.Duration, err error) {
	v, err := s.look(ctx)
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
		c.cfg.OnDrain() // first: it begins nothing of what it was given since
	}
	c.deliver(v.mine)
	led := s.leads
	s.leads = v.leads
	switch {
	case v.leads && !led:
		return 0, nil // the next round looks at all workers
	case led && !v.leads:
		s.stepDown()
	case !v.Registered:
		return 0, nil // this look does not show all workers
	case v.leads:
		return c.lead(ctx, s, v)
	}
	return s.untilLook(), s.endSilent(ctx)
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
	// A worker that replaces a dead one may register too early to remove the dead worker's row. An
	// error of the server, which has an SQLSTATE, leaves the session usable.
	if len(nodes) < len(v.nodes) && now.Sub(c.cleaned) >= c.cfg.HeartbeatTimeout {
		if err := c.clean(ctx, s); err != nil && pgdriver.SQLState(err) == "" {
			return 0, err
		}
	}
	wait = s.untilLook()
	if again {
		wait = liveness.Confirmation
	}
	if !c.cfg.assigns() {
		return wait, nil
	}
	if v.is.owners == nil {
		if !sameMembers(alive, s.balanced) {
			s.checked, wait = time.Time{}, 0 // the next look shows the assignments
		}
		return wait, nil
	}
	n := plan(alive, v.is, c.cfg.Sticky)
	c.watchIdle(s, idle(alive, v.is.owners, n))
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
		return s.untilLook(), nil
	case written > 0:
		c.announce(ctx, s)
		if c.cfg.OnAssigned != nil {
			c.cfg.OnAssigned(len(alive), written)
		}
		wait = 0 // perhaps this worker got some
	}
	if written < len(n.changes) {
		s.checked = time.Time{} // somebody holds the others' rows
	}
	return wait, nil
}
