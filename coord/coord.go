package coord

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/pgfrontier/worker/store"
)

// protocol is what this version keeps to; it is written into the worker's row.
const protocol = 1

// Coordinator is one worker's part in the coordination. Register, Run and
// Leave are called in this order, once each, by one goroutine at a time; the
// other methods may be called by anyone at any time.
type Coordinator struct {
	cfg  Config
	sql  statements
	wake chan struct{}

	session *session // from Register to Run

	mu       sync.Mutex
	assigned []string
	changed  chan struct{} // closed at the next change of assigned
	status   Status
	trusted  time.Time // until then this worker may count on being alive to others
}

// Status is a snapshot for health checks and debugging.
type Status struct {
	Leader bool
	// LastHeartbeat is when the last successful heartbeat began, by this
	// process's clock.
	LastHeartbeat time.Time
	// LastError is why the coordination does not work at the moment, nil if it
	// does.
	LastError error
	// Unowned are the units that are in the assignments and that no live
	// worker has code for, as the leader sees it; nil for everyone else.
	Unowned []string
}

// New returns a Coordinator that does nothing yet.
func New(cfg Config) *Coordinator {
	if cfg.Logger == nil {
		cfg.Logger = store.NoOpLogger{}
	}
	return &Coordinator{cfg: cfg, sql: cfg.statements(), wake: make(chan struct{}, 1), changed: make(chan struct{})}
}

// Register makes this worker known to the others, and removes the rows of
// workers that have been silent for twice the HeartbeatTimeout. A failure is
// returned: that is the time to tell who starts the worker.
func (c *Coordinator) Register(ctx context.Context) error {
	if err := c.cfg.validate(); err != nil {
		return err
	}
	s, err := c.open(ctx)
	if err != nil {
		return err
	}
	if err := s.clean(ctx); err != nil {
		s.close()
		return err
	}
	if err := c.register(ctx, s); err != nil {
		s.close()
		return err
	}
	c.session = s
	return nil
}

func (c *Coordinator) register(ctx context.Context, s *session) error {
	host, err := os.Hostname()
	if err != nil {
		host = "" // for people's eyes only
	}
	if err := s.register(ctx, host, os.Getpid()); err != nil {
		return err
	}
	c.trust(s.beaten)
	return nil
}

// Assigned returns the units that this worker is to run, in order of name. It
// is empty before the first look, and when this worker has had no heartbeat
// for HeartbeatTimeout: then the others have taken over.
func (c *Coordinator) Assigned() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.assigned)
}

// Changed returns a channel that is closed at the next change of Assigned.
// Take it, then look at Assigned, then wait for it: so no change is missed.
func (c *Coordinator) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// Status returns a snapshot.
func (c *Coordinator) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.status
	s.Unowned = slices.Clone(s.Unowned)
	return s
}

// Wake makes the coordinator look now. It never blocks; wakeups coalesce.
func (c *Coordinator) Wake() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Leave hands this worker's units back and takes it off the list, so that the
// others need not find out. It comes after Run has returned, or instead of
// Run, and may be repeated.
func (c *Coordinator) Leave(ctx context.Context) error {
	if c.session != nil {
		c.session.close()
		c.session = nil
	}
	if err := c.cfg.validate(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.timeLimit())
	defer cancel()
	c.deliver(nil)
	var n int
	err := c.cfg.DB.QueryRowContext(ctx, c.sql.leave, c.cfg.ID.String()).Scan(&n)
	if err != nil && ctx.Err() == nil {
		// The pool's connections may have died with an earlier server.
		err = c.cfg.DB.QueryRowContext(ctx, c.sql.leave, c.cfg.ID.String()).Scan(&n)
	}
	if err != nil {
		return fmt.Errorf("coord: leave: %w", err)
	}
	return nil
}

// trust takes note of a successful heartbeat that began at start.
func (c *Coordinator) trust(start time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.LastHeartbeat = start
	c.trusted = start.Add(c.cfg.HeartbeatTimeout)
}

// deliver publishes what is assigned to this worker and what it can run. Once
// the others count this worker as dead, that is nothing.
func (c *Coordinator) deliver(mine []string) {
	var able []string
	for _, u := range mine {
		if slices.Contains(c.cfg.Units, u) {
			able = append(able, u)
		}
	}
	slices.Sort(able)
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Now().After(c.trusted) {
		able = nil
	}
	if slices.Equal(able, c.assigned) {
		return
	}
	c.assigned = able
	close(c.changed)
	c.changed = make(chan struct{})
}

// distrust takes the units away if there has been no heartbeat for too long.
func (c *Coordinator) distrust() {
	c.mu.Lock()
	late := time.Now().After(c.trusted)
	c.mu.Unlock()
	if late {
		c.deliver(nil)
	}
}
