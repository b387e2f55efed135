//go:build unix

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/sim"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/network"
	"github.com/pgfrontier/worker/sim/oracle"
)

const (
	serverKills   history.Fault = "servers killed and restarted"
	backendKills  history.Fault = "backends killed, so that the server restarted itself"
	fullDisks     history.Fault = "disks full"
	fullDiskEnds  history.Fault = "of these, that ended the server"
	limitsReached history.Fault = "times that all connections were taken"
	promotions    history.Fault = "primaries killed and replicas promoted"
	lags          history.Fault = "times that a worker process was led to a lagging replica"
	restores      history.Fault = "primaries set back to a cold copy"
	terminated    history.Fault = "times that backends of workers were ended"
)

// serverRows are the faults of the server.
var serverRows = []faultRow{
	{
		Row: fault.Row{
			Name: "server-kill", Does: "SIGKILL for the server and all its processes, or an immediate shutdown; then it is restarted",
			Counts: []history.Fault{serverKills},
		},
		server: (*serverFaults).killServer,
	},
	{
		Row: fault.Row{
			Name: "backend-kill", Does: "SIGKILL for one backend: the server restarts itself",
			Counts: []history.Fault{backendKills},
		},
		server: (*serverFaults).killBackend,
	},
	{
		Row: fault.Row{
			Name: "full-disk", Does: "the server's disk is full for a moment",
			Counts: []history.Fault{fullDisks},
		},
		also: []history.Fault{fullDiskEnds}, server: (*serverFaults).fillDisk,
	},
	{
		Row: fault.Row{
			Name: "connection-limit", Does: "all connections that max_connections leaves are taken, and some broken that would come again",
			Counts: []history.Fault{limitsReached},
		},
		server: (*serverFaults).takeConnections,
	},
	{
		Row: fault.Row{
			Name: "promote", Does: "the primary is killed and its streaming replica promoted; workers and writers follow",
			Counts: []history.Fault{promotions},
		},
		server: (*serverFaults).promote,
	},
	{
		Row: fault.Row{
			Name: "standby", Does: "new connections of a worker process lead to the replica, which lags, for a while; those that do stay there",
			Counts: []history.Fault{lags},
		},
		server: (*serverFaults).mislead,
	},
}

// restoreRows set the server back, which only a run of events can judge.
var restoreRows = []faultRow{
	{
		Row: fault.Row{
			Name: "restore", Does: "a cold copy of the primary is put back under running workers",
			Counts:  []history.Fault{restores},
			Reaches: []oracle.Condition{oracle.ServerSetBack},
		},
		server: (*serverFaults).restore,
	},
}

// terminateRows end backends, as an operator does.
var terminateRows = []faultRow{
	{
		Row: fault.Row{
			Name: "terminate", Does: "some backends of worker processes are ended",
			Counts: []history.Fault{terminated},
		},
		server: (*serverFaults).terminate,
	},
}

// serverFaults injects faults into the server, one after the other.
type serverFaults struct {
	cluster *cluster
	dice    *rand.Rand
	count   func(f history.Fault, where string)
	links   func() []*network.Link // of worker processes, to the primary
	env     sim.Env

	copying *sync.RWMutex // held while the server is copied

	hurry time.Duration // divides the pauses; a run of the command has 0, which is 1
}

// between draws a pause.
func (f *serverFaults) between(low, high time.Duration) time.Duration {
	return (low + time.Duration(f.dice.Int64N(int64(high-low)))) / max(f.hurry, 1)
}

func (f *serverFaults) killServer(ctx context.Context) error {
	if f.dice.IntN(2) == 0 {
		if err := f.cluster.primary.Kill(); err != nil {
			return err
		}
		f.count(serverKills, "SIGKILL")
	} else {
		if err := syscall.Kill(f.cluster.primary.PID(), syscall.SIGQUIT); err != nil {
			return fmt.Errorf("chaos: the postmaster: %w", err)
		}
		f.count(serverKills, "immediate shutdown")
	}
	backoff.Sleep(ctx, f.between(0, 2*time.Second))
	if err := f.cluster.primary.Restart(ctx); err != nil {
		return err
	}
	return f.cluster.well(ctx)
}

// killBackend kills one that works for a worker. A session of our own shows
// when the server goes down.
func (f *serverFaults) killBackend(ctx context.Context) error {
	session, err := f.cluster.connect(ctx)
	if err != nil {
		return fmt.Errorf("chaos: %w", err)
	}
	defer func() { _ = session.Close(ctx) }()
	var pid int
	err = session.QueryRow(ctx, `SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'sim worker %' ORDER BY xact_start IS NULL, random() LIMIT 1`).Scan(&pid)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil // they are all gone for the moment
	}
	if err != nil {
		return fmt.Errorf("chaos: %w", err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); errors.Is(err, syscall.ESRCH) {
		return nil
	} else if err != nil {
		return fmt.Errorf("chaos: backend %d: %w", pid, err)
	}
	f.count(backendKills, "")
	bounded, cancel := context.WithTimeout(ctx, f.cluster.bounds.Of(recovery))
	defer cancel()
	for session.Ping(bounded) == nil {
		backoff.Sleep(bounded, 5*time.Millisecond)
	}
	if bounded.Err() != nil {
		return fmt.Errorf("chaos: the server did not go down with backend %d: %w", pid, bounded.Err())
	}
	return f.cluster.well(ctx)
}

// terminate ends a few of the workers' backends. The server goes on.
func (f *serverFaults) terminate(ctx context.Context) error {
	ended := 0
	err := f.cluster.on(ctx, func(c *pgx.Conn) error {
		return c.QueryRow(ctx, `
SELECT count(pg_terminate_backend(pid)) FROM (
	SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'sim worker %' ORDER BY random() LIMIT $1) AS victims`, 1+f.dice.IntN(6)).Scan(&ended)
	})
	if err != nil {
		return fmt.Errorf("chaos: %w", err)
	}
	if ended > 0 {
		f.count(terminated, fmt.Sprintf("%d of them", ended))
	}
	return nil
}

// filling bounds how long the harness tries to fill a disk.
const filling = 30 * time.Second

// fillDisk lets the server run out of room, half of the times in the middle of
// its log, which it does not survive.
func (f *serverFaults) fillDisk(ctx context.Context) error {
	session, err := f.cluster.connect(ctx)
	if err != nil {
		return fmt.Errorf("chaos: %w", err)
	}
	defer func() { _ = session.Close(ctx) }()
	if err := f.cluster.primary.Fill(); err != nil {
		return err
	}
	written, ends := `SELECT 1`, f.dice.IntN(2) == 0
	if ends { // the log of changes, a segment at a time
		written = `SELECT pg_logical_emit_message(false, 'chaos', repeat('x', 16000000))`
	}
	full := false
	enough := func() bool { return full && (!ends || session.Ping(ctx) != nil) }
	began := time.Now() // a busy machine takes its time to fill a disk
	until, limit := began.Add(f.between(time.Second, 4*time.Second)), began.Add(f.cluster.bounds.Of(filling))
	for (time.Now().Before(until) || !enough()) && time.Now().Before(limit) && backoff.Sleep(ctx, 50*time.Millisecond) {
		err := f.cluster.exec(ctx, written, `CREATE TEMPORARY TABLE filler AS SELECT repeat('x', 1000) FROM generate_series(1, 1000)`)
		full = full || err != nil
	}
	if full {
		f.count(fullDisks, "")
	}
	if session.Ping(ctx) != nil {
		f.count(fullDiskEnds, "")
	}
	if err := f.cluster.primary.Free(); err != nil {
		return err
	}
	return f.cluster.well(ctx)
}

// takeConnections takes every connection that is left, breaks some of those in
// use, and takes their places too.
func (f *serverFaults) takeConnections(ctx context.Context) error {
	var taken []*pgx.Conn
	defer func() {
		for _, c := range taken {
			_ = c.Close(ctx)
		}
	}()
	take := func() (full bool, err error) {
		for ctx.Err() == nil {
			c, err := f.cluster.connect(ctx)
			var refused *pgconn.PgError
			switch {
			case err == nil:
				taken = append(taken, c)
			case errors.As(err, &refused) && refused.Code == "53300":
				return true, nil
			default:
				return false, fmt.Errorf("chaos: %w", err)
			}
		}
		return false, nil
	}
	if full, err := take(); !full {
		return err
	}
	f.count(limitsReached, fmt.Sprintf("%d more connections", len(taken)))
	for until := time.Now().Add(f.between(2*time.Second, 5*time.Second)); time.Now().Before(until) && len(taken) > 0; {
		_, err := taken[0].Exec(ctx, `
SELECT pg_terminate_backend(pid) FROM (
	SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'sim w%' ORDER BY random() LIMIT 3) AS victims`)
		if err != nil {
			return fmt.Errorf("chaos: %w", err)
		}
		if _, err := take(); err != nil {
			return err
		}
		if !backoff.Sleep(ctx, 300*time.Millisecond) {
			return nil
		}
	}
	return nil
}

// promote kills the primary for good. The replica has all that was
// acknowledged; it is followed by a new one in the old primary's place.
func (f *serverFaults) promote(ctx context.Context) error {
	s := f.cluster
	if err := s.caughtUp(ctx); err != nil {
		return err
	}
	if err := s.primary.Kill(); err != nil {
		return err
	}
	f.count(promotions, "")
	backoff.Sleep(ctx, f.between(0, time.Second))
	old := s.primary
	s.primary, s.standby = s.standby, nil
	if err := s.exec(ctx, `SELECT pg_promote()`); err != nil {
		return errors.Join(fmt.Errorf("chaos: %w", err), old.Stop(ctx))
	}
	s.past = append(s.past, logOf(old)...)
	if err := old.Stop(ctx); err != nil {
		return err
	}
	if err := s.well(ctx); err != nil {
		return err
	}
	s.leads.Store(int64(s.primary.Port()))
	backoff.Sleep(ctx, f.between(0, time.Second)) // without a replica
	standby, err := s.attach(ctx, old.Port())
	if err != nil {
		return err
	}
	s.standby = standby
	return s.synchronise(ctx)
}

// mislead leads connections of a worker process to the replica for a while,
// which replays nothing meanwhile. What is led there stays there: the worker is
// to find out.
func (f *serverFaults) mislead(ctx context.Context) error {
	links := f.links()
	if len(links) == 0 {
		return nil
	}
	l := links[f.dice.IntN(len(links))]
	if err := f.cluster.tellStandby(ctx, `SELECT pg_wal_replay_pause()`); err != nil {
		return err
	}
	backoff.Sleep(ctx, f.between(100*time.Millisecond, 500*time.Millisecond))
	l.Mislead(address(f.cluster.standby.Port()))
	backoff.Sleep(ctx, f.between(time.Second, 3*time.Second))
	if led := l.Mislead(""); led > 0 {
		f.count(lags, fmt.Sprintf("%d connections", led))
	}
	return f.cluster.tellStandby(ctx, `SELECT pg_wal_replay_resume()`)
}

// restore makes a cold copy of the primary and puts it back some time later,
// while the workers run. The replica has what the copy has not: a new one takes
// its place.
func (f *serverFaults) restore(ctx context.Context) error {
	s := f.cluster
	f.copying.Lock()
	saved, err := f.env.Save(ctx, func(ctx context.Context) error { return errors.Join(s.primary.Save(ctx), s.well(ctx)) })
	f.copying.Unlock()
	if !saved || err != nil {
		return err
	}
	backoff.Sleep(ctx, f.between(500*time.Millisecond, 3*time.Second))
	restored, err := f.env.PutBack(ctx, s.putBack)
	if restored {
		f.count(restores, "")
	}
	return err
}
