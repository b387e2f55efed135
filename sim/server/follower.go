package server

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/lab/embedded"
	"github.com/pgfrontier/worker/sim/harness"
)

// Follower is a server that follows the run's server. Faults lead connections of workers to it. It
// is made before the faults begin, and again after each that ends it: a copy takes a second, on a
// busy machine as long as a short run.
type Follower struct {
	of     *Instance
	busy   sync.Mutex
	server *embedded.Server // nil: there is none
}

// NewFollower returns the follower of an instance. It ends before the database is removed.
func NewFollower(of *Instance) *Follower {
	f := &Follower{of: of}
	of.beforeDrop(f.Stop)
	return f
}

// Start makes the follower.
func (f *Follower) Start(ctx context.Context) error {
	f.busy.Lock()
	defer f.busy.Unlock()
	return f.Ensure(ctx)
}

// TryTake takes the follower, unless somebody has it, until release.
func (f *Follower) TryTake() bool { return f.busy.TryLock() }

func (f *Follower) Release() { f.busy.Unlock() }

// Stop ends the follower for good.
func (f *Follower) Stop() error { return f.Without(func() error { return nil }) }

// Without changes the primary while it has no follower. A primary that is put back to an older
// state would not shut down with one: it waits for its follower to confirm a position, and the
// follower has come further.
func (f *Follower) Without(change func() error) error {
	f.busy.Lock()
	defer f.busy.Unlock()
	if err := f.end(); err != nil {
		return err
	}
	return change()
}

func (f *Follower) end() error {
	if f.server == nil {
		return nil
	}
	bound := f.of.Bounds.Of(WaitBound)
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	server := f.server
	f.server = nil
	return harness.Failed("the stop of the standby", bound, server.Stop(ctx))
}

// Ensure makes the follower if there is none. The caller has taken it.
func (f *Follower) Ensure(ctx context.Context) (err error) {
	if f.server != nil {
		return nil
	}
	bound := f.of.Bounds.Of(2 * WaitBound) // to copy the server, and to start
	bounded, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	if f.server, err = f.of.Own.Standby(bounded, 0); ctx.Err() != nil {
		return err
	}
	return harness.Failed("the start of a standby", bound, err)
}

// Tell executes a statement on the follower.
func (f *Follower) Tell(ctx context.Context, statement string) error {
	bound := f.of.Bounds.Of(statementBound)
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	conn, err := pgx.Connect(ctx, f.server.URL(""))
	if err == nil {
		_, err = conn.Exec(ctx, statement)
		err = errors.Join(err, conn.Close(ctx))
	}
	return harness.Statement("a statement on the standby", bound, err)
}

func (f *Follower) Address() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(f.server.Port()))
}

// Excuse lets a follower fail where its primary may go away under it.
func (f *Follower) Excuse(err error) error {
	if f.of.Mortal {
		return nil
	}
	return err
}
