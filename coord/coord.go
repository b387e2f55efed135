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

// Coordinator is one worker's part in the coordination. Register, Run and
// Leave are called in this order, by one goroutine at a time; the other
// methods may be called by anyone at any time.
type Coordinator struct {
	cfg  Config
	sql  statements
	wake *wakeup.Signal

	alive      *liveness.Registry
	registered *session  // from Register to Run
	told       []string  // the idle units that were reported
	cleaned    time.Time // when rows of dead workers were last looked for

	mu       sync.Mutex
	assigned []string
	wanted   map[string]int // partitions, of the assigned
	changed  chan struct{}  // closed at the next change of assigned or wanted
	status   Status
	lease    lease     // behind status.Leader
	expires  time.Time // until then the others count this worker as alive
	expiry   *time.Timer
}

// Status is a snapshot for health checks and debugging.
type Status struct {
	// Leader tells whether this worker assigns the units.
	Leader bool
	// LastHeartbeat is when the last successful heartbeat began, by this
	// process's clock.
	LastHeartbeat time.Time
	// LastTurn is when Run last began a round, or another try after a failure, by this
	// process's clock. Every statement has a bound, so a Run without a turn for
	// minutes beyond the HeartbeatInterval hangs. It is the zero time before Run.
	LastTurn time.Time
	// LastError is why the coordination does not work at the moment, nil if it
	// does.
	LastError error
	// Unowned are the units that nobody runs, in order of name. Only the leader
	// knows them, after a HeartbeatInterval.
	Unowned []string
}

// New returns a Coordinator that does nothing yet.
func New(cfg Config) *Coordinator {
	return &Coordinator{cfg: cfg, sql: cfg.statements(), alive: liveness.New(cfg.liveness()), wake: wakeup.New(), changed: make(chan struct{})}
}

// Register makes this worker known to the others, and removes the rows of
// workers that have been silent for twice their HeartbeatTimeout. It does not
// try again: the caller does, while the database cannot be reached.
func (c *Coordinator) Register(ctx context.Context) error {
	if err := c.cfg.validate(); err != nil {
		return err
	}
	s, err := c.open(ctx)
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

// clean removes the rows of workers that have been silent for twice their HeartbeatTimeout. The rows
// that an error leaves behind do no harm.
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

// Drain hands this worker's units back, except for those that it still runs, and asks the
// leader to assign it no other. It comes before the end of Run, and may be repeated.
func (c *Coordinator) Drain(ctx context.Context, running []string) error {
	if !c.cfg.assigns() {
		return nil
	}
	kept, err := json.Marshal(append([]string{}, running...))
	if err != nil {
		return err
	}
	s, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	if _, err := s.Exec(ctx, "say that it is draining", s.sql.drain, s.args(string(kept))...); err != nil {
		return wrap(err)
	}
	c.announce(ctx, s)
	return nil
}

// Leave hands this worker's units back and takes it off the list, so that the
// others need not find out. The table of the workers that stopped records failed, whether the
// worker failed. Leave comes after Run has returned, or instead of Run, and may be repeated.
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
	c.deliver(nil)
	var err error
	// Each idle connection of the pool may be dead, or lead to a standby.
	for tries := c.cfg.DB.Stats().Idle + 1; tries > 0 && ctx.Err() == nil; tries-- {
		if err = c.deregister(ctx, failed); err == nil {
			return nil
		}
	}
	return errtext.Join(err, ctx.Err())
}

// deregister takes this worker off the list, on a connection of the pool.
func (c *Coordinator) deregister(ctx context.Context, failed bool) error {
	s, err := c.connect(ctx)
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

// Assigned returns the units that this worker is to run, in order of name. It
// is empty before the first look, and when this worker has had no heartbeat
// for HeartbeatTimeout: then the others have taken over.
func (c *Coordinator) Assigned() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.assigned)
}

// Wanted returns into how many partitions the leader wants the consumer of an
// assigned unit to be cut; 0: its units are to stay.
func (c *Coordinator) Wanted(unit string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wanted[unit]
}

// Changed returns a channel that is closed at the next change of Assigned or
// Wanted. Take it, then look at these, then wait for it: so no change is missed.
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
	if c.cfg.Strategy == Lease {
		s.Leader = s.Leader && c.lease.remaining(time.Now(), c.cfg.HeartbeatTimeout) > 0
	}
	return s
}

// Wake makes the coordinator look now, to be called when the counter of
// Changes has moved. It never blocks; wakeups coalesce.
func (c *Coordinator) Wake() { c.wake.Send() }

// announce tells the other workers that there is news. They also look by
// themselves, but later.
func (c *Coordinator) announce(ctx context.Context, s *session) {
	limited, cancel := context.WithTimeout(ctx, c.alive.TimeLimit())
	defer cancel()
	if err := changes.Notify(limited, s.Conn, c.cfg.Changes); err != nil && ctx.Err() == nil {
		c.cfg.taskFailed("announce a change", err)
	}
}

// Dead reports whether what a worker has begun may be ended: the worker has no
// row, its last heartbeat is older than its HeartbeatTimeout, or its lock is free
// and the next heartbeat overdue. A worker may look like it for a moment, so
// ask twice, a while apart. It takes a Register that succeeded.
//
// The leader is quicker to give a worker's units to others, since that does no
// harm to one that lives and has lost its connection.
func (c *Coordinator) Dead(ctx context.Context, db *sql.DB, id uuid.UUID) (dead bool, err error) {
	dead, err = c.alive.Dead(ctx, pgdriver.Pool{DB: db}, id, liveness.OwnGrace)
	return dead, wrap(err)
}

// DeadSQL returns the begin of a statement, up to its CTE "dead" with the
// worker_id of those of the workers that are dead, and its arguments. With
// advisory locks a worker whose lock is free is dead once its heartbeat is older
// than grace. It takes a Register that succeeded.
func (c *Coordinator) DeadSQL(workers []uuid.UUID, grace time.Duration) (with string, args []any, err error) {
	with, args, err = c.alive.DeadSQL(workers, grace)
	return with, args, wrap(err)
}

// renew takes note of a successful heartbeat that began at start.
func (c *Coordinator) renew(start time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.LastHeartbeat = start
	c.expires = start.Add(c.cfg.HeartbeatTimeout)
	if c.expiry == nil {
		c.expiry = time.AfterFunc(time.Until(c.expires), c.expire)
	} else {
		c.expiry.Reset(time.Until(c.expires))
	}
}

// expire takes the units away once there has been no heartbeat for too long.
func (c *Coordinator) expire() {
	c.mu.Lock()
	mine := c.wanted
	c.mu.Unlock()
	c.deliver(mine)
}

// deliver publishes what of mine this worker has code for: nothing, once the
// others count it as dead.
func (c *Coordinator) deliver(mine map[string]int) {
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

// turns takes note that Run goes on.
func (c *Coordinator) turns() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.LastTurn = time.Now()
}

// works takes note that a round succeeded.
func (c *Coordinator) works(s *session) {
	c.mu.Lock()
	c.lease, c.status.LastError = s.lease, nil
	c.mu.Unlock()
	c.setLeader(s.leads)
}

// setLeader takes note of who leads, and passes on a change.
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

// fails takes note that it did not.
func (c *Coordinator) fails(err error) {
	c.mu.Lock()
	c.status.LastError = err
	c.mu.Unlock()
	c.setLeader(false)
}
