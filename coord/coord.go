package coord

import (
	"context"
	"database/sql"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/changes"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/liveness"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/wakeup"
)

// Coordinator is one worker's part in the coordination. One goroutine at a time calls
// Register, Run and Leave, in this order. The other methods are safe for concurrent use.
type Coordinator struct {
	cfg  Config
	sql  statements
	wake *wakeup.Signal

	alive      *liveness.Registry
	registered *session  // from Register to Run
	reported   []string  // the idle units that were reported
	cleaned    time.Time // when the removal of dead workers' rows last ran

	mu       sync.Mutex
	assigned []string
	wanted   map[string]int // partitions by assigned unit
	changed  chan struct{}  // closed at the next change of assigned or wanted
	status   Status
	lease    lease     // status.Leader holds as long as the lease
	expires  time.Time // the other workers count this worker as alive until then
	expiry   *time.Timer
}

// Status is a snapshot for health checks and debugging.
type Status struct {
	// Leader reports whether this worker assigns the units.
	Leader bool
	// LastHeartbeat is the start of the latest successful heartbeat, by this process's clock.
	LastHeartbeat time.Time
	// LastTurn is the start of the latest round of Run, by this process's clock. An attempt
	// after a failure counts as a round. Every statement has a time limit. So a Run hangs if
	// LastTurn is minutes older than the HeartbeatInterval. LastTurn is the zero time before
	// Run.
	LastTurn time.Time
	// LastError is the current failure of the coordination, nil while it works.
	LastError error
	// Unowned are the units that no worker runs, in order of name. Only the leader fills it,
	// after a HeartbeatInterval.
	Unowned []string
}

// New returns a Coordinator that does not run yet.
func New(cfg Config) *Coordinator {
	return &Coordinator{cfg: cfg, sql: cfg.statements(), alive: liveness.New(cfg.liveness()), wake: wakeup.New(), changed: make(chan struct{})}
}

// Register makes this worker known to the others. It also removes the rows of workers that
// have been silent for twice their HeartbeatTimeout. Register does not retry: the caller
// retries while the database is unreachable.
func (c *Coordinator) Register(ctx context.Context) error {
	if err := c.cfg.validate(); err != nil {
		return err
	}
	s, err := c.session(c.alive.Open(ctx)) // also detects a transaction-pooling proxy
	if err != nil {
		return err
	}
	if err := s.Register(ctx); err != nil {
		s.Close()
		return wrap(err)
	}
	c.renew(s.Beaten)
	c.announce(ctx, s)
	if c.clean(ctx, s) != nil {
		s.Close() // Run opens another
		return nil
	}
	c.registered = s
	return nil
}

// clean removes the rows of workers that have been silent for twice their HeartbeatTimeout.
// Rows that remain after an error do no harm.
func (c *Coordinator) clean(ctx context.Context, s *session) error {
	c.cleaned = time.Now()
	n, err := s.Clean(ctx)
	if err != nil {
		c.cfg.taskFailed("remove stale workers", err)
	} else if n > 0 && c.cfg.OnStaleRemoved != nil {
		c.cfg.OnStaleRemoved(n)
	}
	return err
}

// Drain releases this worker's units, except for the units that still run. It asks the leader
// to assign no other units to this worker. Call Drain before the end of Run. Drain may be
// repeated.
func (c *Coordinator) Drain(ctx context.Context, running []string) error {
	if !c.cfg.assigns() {
		return nil
	}
	kept, err := json.Marshal(append([]string{}, running...))
	if err != nil {
		return err
	}
	s, err := c.session(c.alive.Connect(ctx))
	if err != nil {
		return err
	}
	defer s.Close()
	if _, err := s.Exec(ctx, "record that this worker drains", s.sql.drain, s.args(string(kept))...); err != nil {
		return wrap(err)
	}
	c.announce(ctx, s)
	return nil
}

// Leave releases this worker's units and removes its row, so that the other workers need not
// wait for a timeout. The table of stopped workers records whether the worker failed. Call it after
// Run, or instead. It may be repeated. It tries until ctx ends while the database answers too late.
func (c *Coordinator) Leave(ctx context.Context, failed bool) error {
	if c.registered != nil {
		c.registered.Unlock()
		c.registered.Close()
		c.registered = nil
	}
	if err := c.cfg.validate(); err != nil {
		return err
	}
	c.mu.Lock()
	if c.expiry != nil {
		c.expiry.Stop()
	}
	c.mu.Unlock()
	c.setAssigned(nil)
	var err error
	// Each idle connection of the pool may be dead or lead to a standby.
	for tries := c.cfg.DB.Stats().Idle; ctx.Err() == nil; tries-- {
		began := time.Now()
		if err = c.deregister(ctx, failed); err == nil {
			return nil
		}
		if tries <= 0 && time.Since(began) < c.alive.TimeLimit() {
			break
		}
	}
	return errtext.Join(err, ctx.Err())
}

// deregister removes this worker's row, on a connection of the pool.
func (c *Coordinator) deregister(ctx context.Context, failed bool) error {
	s, err := c.session(c.alive.Connect(ctx))
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.leave(ctx, failed); err != nil {
		return wrap(err)
	}
	c.announce(ctx, s)
	return nil
}

// Assigned returns the units that this worker is to run, in order of name. It is empty before
// the first poll. It is also empty when this worker had no heartbeat for HeartbeatTimeout,
// since other workers then run the units.
func (c *Coordinator) Assigned() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.assigned)
}

// Wanted returns the number of partitions into which the leader wants the consumer of an
// assigned unit to be split. 0 means that the units stay as they are.
func (c *Coordinator) Wanted(unit string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wanted[unit]
}

// Changed returns a channel that is closed at the next change of Assigned or Wanted. To miss
// no change, take the channel, read Assigned and Wanted, then wait.
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
	if c.cfg.Lease {
		s.Leader = s.Leader && c.lease.remaining(time.Now(), c.cfg.HeartbeatTimeout) > 0
	}
	return s
}

// Wake makes the coordinator poll now. Call it when the counter of Changes has moved. Wake
// never blocks, and wakeups coalesce.
func (c *Coordinator) Wake() { c.wake.Send() }

// announce notifies the other workers of a change. Without the notification they detect the
// change at their next poll.
func (c *Coordinator) announce(ctx context.Context, s *session) {
	limited, cancel := context.WithTimeout(ctx, c.alive.TimeLimit())
	defer cancel()
	if err := changes.Notify(limited, s.Conn, c.cfg.Changes); err != nil && ctx.Err() == nil {
		c.cfg.taskFailed("announce a change", err)
	}
}

// Dead reports whether the work of a worker may be ended. A worker without a row is dead, and
// so is a worker whose last heartbeat is older than its HeartbeatTimeout. A worker is also
// dead if its lock is free and its next heartbeat is overdue. A live worker may seem dead for
// a moment, so ask twice, with a pause. Dead requires a successful Register.
//
// The leader reassigns units sooner: this does no harm to a worker that lives and has lost its
// connection.
func (c *Coordinator) Dead(ctx context.Context, db *sql.DB, id uuid.UUID) (dead bool, err error) {
	dead, err = c.alive.Dead(ctx, pgdriver.Pool{DB: db}, id, liveness.OwnGrace)
	return dead, wrap(err)
}

// DeadSQL returns the start of a statement, up to a CTE "dead", and its arguments. The CTE has the
// worker_ids of the dead workers among workers. With advisory locks, a worker whose lock is free is
// dead once its heartbeat is older than grace. DeadSQL requires a successful Register.
func (c *Coordinator) DeadSQL(workers []uuid.UUID, grace time.Duration) (with string, args []any, err error) {
	with, args, err = c.alive.DeadSQL(workers, grace)
	return with, args, wrap(err)
}

// renew records a successful heartbeat that began at start. When the latest heartbeat has become
// too old, the assigned units are cleared.
func (c *Coordinator) renew(start time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.LastHeartbeat = start
	c.expires = start.Add(c.cfg.HeartbeatTimeout)
	if c.expiry == nil {
		c.expiry = time.AfterFunc(time.Until(c.expires), func() {
			c.mu.Lock()
			mine := c.wanted
			c.mu.Unlock()
			c.setAssigned(mine)
		})
	} else {
		c.expiry.Reset(time.Until(c.expires))
	}
}

// setAssigned publishes the units of mine that this worker has code for. It publishes none if
// the other workers count this worker as dead.
func (c *Coordinator) setAssigned(mine map[string]int) {
	able := map[string]int{}
	for u, partitions := range mine {
		if slices.Contains(c.cfg.Units, partition.Consumer(u)) {
			able[u] = partitions
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !time.Now().Before(c.expires) {
		clear(able)
	}
	if maps.Equal(able, c.wanted) {
		return
	}
	c.assigned, c.wanted = slices.Sorted(maps.Keys(able)), able
	close(c.changed)
	c.changed = make(chan struct{})
}

// record changes the status.
func (c *Coordinator) record(change func(*Status)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.status)
}

// setLeader records whether this worker leads, and reports a change to OnLeader.
func (c *Coordinator) setLeader(leads bool) {
	c.mu.Lock()
	changed := c.status.Leader != leads
	if c.status.Leader = leads; !leads {
		c.status.Unowned = nil
	}
	c.mu.Unlock()
	if changed && c.cfg.OnLeader != nil {
		c.cfg.OnLeader(leads)
	}
}
