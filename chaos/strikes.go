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
	"github.com/pgfrontier/worker/sim/history"
)

// strikes are the faults of the server. Each returns when the server is well
// again, and counts what has happened.
var strikes = map[string]func(*director, context.Context) error{
	"server-kill":      (*director).killServer,
	"backend-kill":     (*director).killBackend,
	"full-disk":        (*director).fillDisk,
	"connection-limit": (*director).takeConnections,
	"promote":          (*director).promote,
	"standby":          (*director).mislead,
	"restore":          (*director).restore,
}

// director lets faults befall the server, one after the other.
type director struct {
	site  *site
	dice  *rand.Rand
	count func(f history.Fault, where string)
	links func() []*sim.Link // of worker processes, to the primary
	stage sim.Stage

	copying *sync.RWMutex // held while the server is copied
}

func (d *director) between(low, high time.Duration) time.Duration {
	return low + time.Duration(d.dice.Int64N(int64(high-low)))
}

func (d *director) killServer(ctx context.Context) error {
	if d.dice.IntN(2) == 0 {
		if err := d.site.primary.Kill(); err != nil {
			return err
		}
		d.count(ServerKills, "SIGKILL")
	} else {
		if err := syscall.Kill(d.site.primary.PID(), syscall.SIGQUIT); err != nil {
			return fmt.Errorf("chaos: the postmaster: %w", err)
		}
		d.count(ServerKills, "immediate shutdown")
	}
	backoff.Sleep(ctx, d.between(0, 2*time.Second))
	if err := d.site.primary.Restart(ctx); err != nil {
		return err
	}
	return d.site.well(ctx)
}

// killBackend kills one that works for a worker. A session of our own shows
// when the server goes down.
func (d *director) killBackend(ctx context.Context) error {
	witness, err := d.site.connect(ctx)
	if err != nil {
		return fmt.Errorf("chaos: %w", err)
	}
	defer func() { _ = witness.Close(ctx) }()
	var pid int
	err = witness.QueryRow(ctx, `SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'sim worker %' ORDER BY xact_start IS NULL, random() LIMIT 1`).Scan(&pid)
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
	d.count(BackendKills, "")
	bounded, cancel := context.WithTimeout(ctx, recovery)
	defer cancel()
	for witness.Ping(bounded) == nil {
		backoff.Sleep(bounded, 5*time.Millisecond)
	}
	if bounded.Err() != nil {
		return fmt.Errorf("chaos: the server did not go down with backend %d: %w", pid, bounded.Err())
	}
	return d.site.well(ctx)
}

// fillDisk lets the server run out of room, half of the times in the middle of
// its log, which it does not survive.
func (d *director) fillDisk(ctx context.Context) error {
	witness, err := d.site.connect(ctx)
	if err != nil {
		return fmt.Errorf("chaos: %w", err)
	}
	defer func() { _ = witness.Close(ctx) }()
	if err := d.site.primary.Fill(); err != nil {
		return err
	}
	written := `SELECT 1`
	if d.dice.IntN(2) == 0 { // the log of changes, a segment at a time
		written = `SELECT pg_logical_emit_message(false, 'chaos', repeat('x', 16000000))`
	}
	full := false
	for until := time.Now().Add(d.between(time.Second, 4*time.Second)); time.Now().Before(until) && backoff.Sleep(ctx, 50*time.Millisecond); {
		err := d.site.exec(ctx, written, `CREATE TEMPORARY TABLE filler AS SELECT repeat('x', 1000) FROM generate_series(1, 1000)`)
		full = full || err != nil
	}
	if full {
		d.count(FullDisks, "")
	}
	if witness.Ping(ctx) != nil {
		d.count(FullDiskEnds, "")
	}
	if err := d.site.primary.Free(); err != nil {
		return err
	}
	return d.site.well(ctx)
}

// takeConnections takes every connection that is left, breaks some of those in
// use, and takes their places too.
func (d *director) takeConnections(ctx context.Context) error {
	var taken []*pgx.Conn
	defer func() {
		for _, c := range taken {
			_ = c.Close(ctx)
		}
	}()
	take := func() (full bool, err error) {
		for ctx.Err() == nil {
			c, err := d.site.connect(ctx)
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
	d.count(LimitsReached, fmt.Sprintf("%d more connections", len(taken)))
	for until := time.Now().Add(d.between(2*time.Second, 5*time.Second)); time.Now().Before(until) && len(taken) > 0; {
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
func (d *director) promote(ctx context.Context) error {
	s := d.site
	if err := s.caughtUp(ctx); err != nil {
		return err
	}
	if err := s.primary.Kill(); err != nil {
		return err
	}
	d.count(Promotions, "")
	backoff.Sleep(ctx, d.between(0, time.Second))
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
	backoff.Sleep(ctx, d.between(0, time.Second)) // without a replica
	standby, err := s.primary.Standby(ctx, old.Port())
	if err != nil {
		return err
	}
	s.standby = standby
	return s.synchronise(ctx)
}

// mislead leads connections of a worker process to the replica for a while,
// which replays nothing meanwhile. What is led there stays there: the worker is
// to find out.
func (d *director) mislead(ctx context.Context) error {
	links := d.links()
	if len(links) == 0 {
		return nil
	}
	l := links[d.dice.IntN(len(links))]
	if err := d.site.tellStandby(ctx, `SELECT pg_wal_replay_pause()`); err != nil {
		return err
	}
	backoff.Sleep(ctx, d.between(100*time.Millisecond, 500*time.Millisecond))
	l.Mislead(address(d.site.standby.Port()))
	backoff.Sleep(ctx, d.between(time.Second, 3*time.Second))
	if led := l.Mislead(""); led > 0 {
		d.count(Lags, fmt.Sprintf("%d connections", led))
	}
	return d.site.tellStandby(ctx, `SELECT pg_wal_replay_resume()`)
}

// restore makes a cold copy of the primary and puts it back some time later,
// while the workers run. The replica has what the copy has not: a new one takes
// its place.
func (d *director) restore(ctx context.Context) error {
	s := d.site
	placed, err := d.stage.Placed(ctx)
	if err != nil || placed == 0 {
		return err
	}
	d.copying.Lock()
	err = d.stage.Save(func(ctx context.Context) error { return errors.Join(s.primary.Save(ctx), s.well(ctx)) })
	d.copying.Unlock()
	if err != nil {
		return err
	}
	backoff.Sleep(ctx, d.between(500*time.Millisecond, 3*time.Second))
	// A consumer that has got its first checkpoint since would lose it.
	if now, err := d.stage.Placed(ctx); err != nil || now != placed {
		return err
	}
	d.count(Restores, "")
	return d.stage.PutBack(s.putBack)
}
