package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/lab/embedded"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/harness"
	"github.com/pgfrontier/worker/sim/history"
)

const (
	ledToLagging history.Fault = "connections that led to a lagging standby"
	ledToSecond  history.Fault = "connections that led to a second primary"
)

// standbyFaults lead connections to another server than the primary.
var standbyFaults = []faultRow{
	{
		Row: fault.Row{
			Name: "standby", Does: "leads connections of a worker to a standby that lags",
			Counts: []history.Fault{ledToLagging},
		},
		needs:  []*requirement{ownServer, replicating},
		worker: at(misleading(ledToLagging, false), afterEffect, afterEffect),
	},
	{
		Row: fault.Row{
			Name: "split", Does: "promotes a standby beside the primary, and leads connections of a worker there",
			Counts: []history.Fault{ledToSecond},
		},
		needs:  []*requirement{ownServer, replicating},
		worker: at(misleading(ledToSecond, true), afterEffect, afterEffect),
	},
}

// follower is a server that follows that of the run. Connections of workers are
// led there that should not be. It is made before the faults begin, and again
// after each that ends it: a copy takes a second, on a busy machine as long as a
// short run.
type follower struct {
	busy   sync.Mutex
	bounds harness.Bounds
	server *embedded.Server // nil: there is none
}

// follow makes the follower if one of the faults wants it.
func (o *outages) follow(ctx context.Context, faults Intensities) error {
	if !faults.any(func(f faultRow) bool { return slices.Contains(f.needs, replicating) }) {
		return nil
	}
	o.follower.busy.Lock()
	defer o.follower.busy.Unlock()
	return o.follower.ensure(ctx, o.own)
}

// stop ends it for good.
func (f *follower) stop() error { return f.without(func() error { return nil }) }

// without changes the primary while it has no follower. A primary that is put back
// to an older state would not shut down any more: it waits for its follower to
// confirm a position, and that has come further.
func (f *follower) without(change func() error) error {
	f.busy.Lock()
	defer f.busy.Unlock()
	if err := f.end(); err != nil {
		return err
	}
	return change()
}

func (f *follower) end() error {
	if f.server == nil {
		return nil
	}
	bound := f.bounds.Of(waitBound)
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	server := f.server
	f.server = nil
	return harness.Failed("the stop of the standby", bound, server.Stop(ctx))
}

// ensure makes it if there is none.
func (f *follower) ensure(ctx context.Context, of Server) (err error) {
	if f.server != nil {
		return nil
	}
	bound := f.bounds.Of(2 * waitBound) // to copy the server, and to start
	bounded, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	if f.server, err = of.Standby(bounded, 0); ctx.Err() != nil {
		return err
	}
	return harness.Failed("the start of a standby", bound, err)
}

// tell executes a statement there.
func (f *follower) tell(ctx context.Context, statement string) error {
	bound := f.bounds.Of(statementBound)
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	conn, err := pgx.Connect(ctx, f.server.URL(""))
	if err == nil {
		_, err = conn.Exec(ctx, statement)
		err = errors.Join(err, conn.Close(ctx))
	}
	return harness.Statement("a statement on the standby", bound, err)
}

func (f *follower) address() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(f.server.Port()))
}

// misleading leads connections of the worker to the follower for a while: to a
// standby that replays nothing meanwhile, or, apart, to one that was promoted
// although the primary lives, and ends for good afterwards. What is led to the
// standby stays there: the worker is to find out.
func misleading(f history.Fault, apart bool) func(s *slot, ctx, intake context.Context, at point) error {
	return func(s *slot, ctx, intake context.Context, _ point) error {
		d := &s.on.follower
		if !d.busy.TryLock() {
			return nil
		}
		if err := d.ensure(ctx, s.on.own); err != nil {
			d.busy.Unlock()
			return s.on.excuseFollower(err)
		}
		err := s.mislead(ctx, intake, d, f, apart)
		d.busy.Unlock()
		if apart || err != nil {
			err = errors.Join(s.on.excuseFollower(err), d.stop())
		}
		return err
	}
}

func (s *slot) mislead(ctx, intake context.Context, d *follower, f history.Fault, apart bool) error {
	before, after := `SELECT pg_wal_replay_pause()`, `SELECT pg_wal_replay_resume()`
	if apart {
		before, after = `SELECT pg_promote()`, ``
	}
	if err := d.tell(ctx, before); err != nil {
		return fmt.Errorf("sim: the follower: %w", err)
	}
	s.pause(intake, 100*time.Millisecond, 500*time.Millisecond)
	n := s.node
	if apart {
		n.apart.Store(true)
	}
	n.net.mislead(d.address())
	s.history.Add(n.name, "", history.FaultInjected, history.Injection{Fault: f})
	s.pause(intake, 500*time.Millisecond, 1500*time.Millisecond)
	s.tally.add(f, n.net.mislead(""))
	s.history.Add(n.name, "", history.FaultOver, history.Injection{Fault: f})
	if apart {
		return nil // it ends
	}
	return d.tell(ctx, after)
}

// excuseFollower lets a follower fail where its primary may go away under it.
func (d *database) excuseFollower(err error) error {
	if d.mortal {
		return nil
	}
	return err
}
