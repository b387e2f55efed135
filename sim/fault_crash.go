package sim

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/lab/embedded"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/harness"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

const (
	backendCrashes               = history.BackendCrashes
	asyncCommits   history.Fault = "transactions committed asynchronously"
	asyncWorkers   history.Fault = "workers that commit asynchronously"
)

// crashFaults crash the server.
var crashFaults = []faultRow{
	{
		Row: fault.Row{
			Name: "server-crash", Does: "kills the server with all its processes, in a batch or at its COMMIT",
			Counts:  []history.Fault{history.ServerCrashes},
			Reaches: []oracle.Condition{oracle.ServerCrashes, oracle.BrokenBatches},
		},
		outage: true, needs: []*requirement{ownServer},
		worker: at(crashing(history.ServerCrashes, (*database).kill, true), afterEffect, afterCommit),
	},
	{
		Row: fault.Row{
			Name: "backend-crash", Does: "kills a backend, for which the server kills all others and recovers",
			Counts:  []history.Fault{backendCrashes},
			Reaches: []oracle.Condition{oracle.ServerCrashes, oracle.BrokenBatches},
		},
		outage: true, needs: []*requirement{ownServer},
		worker: at(crashing(backendCrashes, (*database).killBackend, false), afterEffect),
	},
}

// The settings for which a crash takes commits back: who connects reads them.
const (
	asyncWritersOn = "async-writers"
	asyncWorkersOn = "async-workers"
)

// asyncFaults are those settings.
var asyncFaults = []faultRow{
	{
		Row: fault.Row{
			Name: asyncWritersOn, Does: "lets writers not wait for their commits to be safe, of which a crash may take some back",
			Counts:  []history.Fault{asyncCommits},
			Reaches: []oracle.Condition{oracle.UnsafeCommits},
		},
		async: true, needs: []*requirement{ownServer},
	},
	{
		Row: fault.Row{
			Name: asyncWorkersOn, Does: "lets workers not wait for their commits to be safe",
			Counts: []history.Fault{asyncWorkers},
		},
		async: true, needs: []*requirement{ownServer},
	},
}

// Server is a server that a run may kill and start again.
type Server interface {
	// Kill ends it and all its processes at once, as a crash would.
	Kill() error
	// Restart starts it again, on the same data and at the same address.
	Restart(ctx context.Context) error
	// Save stops it for a cold copy of its data, and starts it again.
	Save(ctx context.Context) error
	// PutBack stops it, puts the copy in place of its data, and starts it again.
	PutBack(ctx context.Context) error
	// Standby starts a server that follows it, on a port that is free.
	Standby(ctx context.Context, port int) (*embedded.Server, error)
}

// lifeTable is empty after a crash, as UNLOGGED tables are.
const lifeTable = `CREATE UNLOGGED TABLE sim_life AS SELECT 1 AS alive`

// outages are the crashes of a server.
type outages struct {
	own   Server // nil: it may not be crashed
	async bool   // somebody does not wait for commits to be safe
	turn  sync.Mutex
	count atomic.Int64
	gone  atomic.Pointer[error] // why the server does not come back; nil: waits for the server go on

	restoring    sync.Mutex
	waits        atomic.Bool // a copy is made, or waits to be put back, or has just been
	copying      atomic.Bool // the server is down for it
	copied       int64       // the life that ended for the copy; 0: there is none
	copiedAt     string      // when the server was back after that
	copiedXID    int64       // no transaction in the copy has a higher one
	copiedPlaced int         // so many consumers had a checkpoint before that
	restores     []history.Restore
	restored     atomic.Int64 // how many of them
	follower     follower
}

// life counts the lives of the server. It is odd while a crash is under way:
// what is seen then may not last.
func (o *outages) life() int64 { return o.count.Load() }

func ends(life int64) bool { return life%2 == 1 }

// steadily repeats what a crash has interrupted.
func (d *database) steadily(ctx context.Context, do func() error) error {
	for end := time.Now().Add(d.bounds.Of(waitBound)); ; {
		err := do()
		if why := d.gone.Load(); err != nil && why != nil {
			return *why
		}
		if err == nil || d.forgive(err) != nil || time.Now().After(end) || !backoff.Sleep(ctx, 10*time.Millisecond) {
			return err
		}
	}
}

// query does the same with statements of the harness's own.
func (d *database) query(ctx context.Context, do func() error) error {
	return d.mine(ctx, d.steadily(ctx, do))
}

// kill kills the server. It reports false if a crash is under way already.
// Unless it does, or fails, the caller must call awaitRecovery.
func (d *database) kill(ctx context.Context, _ string) (killed bool, err error) {
	if !d.turn.TryLock() {
		return false, nil
	}
	if d.async {
		d.withhold(ctx) // the server's end is its end, too
	}
	d.count.Add(1)
	return true, harness.Failed("killing the server", 0, d.own.Kill())
}

// killBackend kills one backend, of a batch of that worker if there is one, or
// the WAL writer, so that asynchronous commits are lost. The server kills all
// others then, and recovers. It is used like kill.
func (d *database) killBackend(ctx context.Context, who string) (killed bool, err error) {
	if !d.turn.TryLock() {
		return false, nil
	}
	if d.async {
		if writer := d.withhold(ctx); writer != nil {
			d.count.Add(1)
			return true, writer.Kill()
		}
	}
	var pid int
	err = d.db.QueryRowContext(ctx, `
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND application_name = $1::text
ORDER BY backend_xid IS NULL LIMIT 1`, "sim "+who).Scan(&pid)
	if err == nil {
		var backend *os.Process
		if backend, err = os.FindProcess(pid); err == nil {
			d.count.Add(1)
			if err = backend.Kill(); !errors.Is(err, os.ErrProcessDone) {
				return true, err
			}
			d.count.Add(1) // it has ended by itself
		}
	}
	d.turn.Unlock()
	if errors.Is(err, sql.ErrNoRows) || d.forgive(err) == nil || ctx.Err() != nil {
		err = nil
	}
	return false, d.mine(ctx, err)
}

// awaitRecovery ends an outage: it starts the server if that is to be done, and
// returns when it has recovered. It does so also for a run that was
// interrupted, which is to leave a server.
func (d *database) awaitRecovery(start bool) (err error) {
	defer d.turn.Unlock()
	ctx, cancel := d.bounded(context.Background(), waitBound)
	defer cancel()
	if start {
		err = d.own.Restart(ctx)
	}
	for err == nil {
		if d.recovered(ctx) {
			d.count.Add(1)
			return nil
		}
		if !backoff.Sleep(ctx, 5*time.Millisecond) {
			err = ctx.Err()
		}
	}
	return d.giveUp("the server's recovery from a crash", err)
}

// giveUp records that the server does not come back, which ends all waits for it.
func (d *database) giveUp(step string, err error) error {
	err = harness.Failed(step, d.bounds.Of(waitBound), err)
	d.gone.Store(&err)
	return err
}

// recovered reports that the server has come back, and marks its new life.
// The harness's connections to the old one are given up.
func (d *database) recovered(ctx context.Context) bool {
	d.refresh()
	result, err := d.db.ExecContext(ctx, `INSERT INTO sim_life SELECT 1 WHERE NOT EXISTS (SELECT FROM sim_life)`)
	if err != nil {
		return false
	}
	n, err := result.RowsAffected()
	return err == nil && n == 1
}

// crashing crashes the server while a worker works.
func crashing(f history.Fault, kill func(*database, context.Context, string) (bool, error), start bool) func(s *slot, ctx, intake context.Context, at point) error {
	return func(s *slot, ctx, intake context.Context, at point) error {
		var killed bool
		var err error
		_, inBatch := s.inject(intake, at, func() { killed, err = kill(s.on, ctx, s.node.name) })
		if !killed {
			return err
		}
		s.happened(f, whereabouts(at, inBatch))
		if start && err == nil {
			s.pause(intake, 0, 300*time.Millisecond)
		}
		err = errors.Join(err, s.on.awaitRecovery(start))
		s.over(f)
		return err
	}
}
