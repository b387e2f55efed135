package server

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
	"github.com/pgfrontier/worker/sim/harness"
)

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

// Instance is the server of a run's database, and its lives. One outage is under way at a
// time.
type Instance struct {
	*Database
	Own   Server // nil: it may not be crashed
	Async bool   // somebody does not wait for commits to be safe
	turn  sync.Mutex
	count atomic.Int64
}

// NewInstance returns the server of a database. own is nil for one that may not be crashed.
func NewInstance(d *Database, own Server) *Instance {
	d.Can.Own = own != nil
	return &Instance{Database: d, Own: own}
}

// Life counts the lives of the server. It is odd while a crash is under way:
// what is seen then may not last.
func (i *Instance) Life() int64 { return i.count.Load() }

// Ending reports whether a life is one that ends, as the server crashes or is stopped.
func Ending(life int64) bool { return life%2 == 1 }

// TryOutage begins an outage, unless another one is under way. It ends with EndOutage.
func (i *Instance) TryOutage() bool { return i.turn.TryLock() }

// Outage begins an outage when no other one is under way any more.
func (i *Instance) Outage() { i.turn.Lock() }

func (i *Instance) EndOutage() { i.turn.Unlock() }

// EndLife marks the end of the server's life, and returns what life counts until it is
// back.
func (i *Instance) EndLife() (during int64) { return i.count.Add(1) }

// BeginLife marks that the server is back.
func (i *Instance) BeginLife() { i.count.Add(1) }

// Kill kills the server. It reports false if a crash is under way already. If it reports true, or
// fails, the caller must call AwaitRecovery.
func (i *Instance) Kill(ctx context.Context, _ string) (killed bool, err error) {
	if !i.TryOutage() {
		return false, nil
	}
	if i.Async {
		i.withhold(ctx) // the process ends with the server
	}
	i.EndLife()
	return true, harness.Failed("killing the server", 0, i.Own.Kill())
}

// KillBackend kills one backend, of a batch of that worker if there is one, or the WAL writer, so
// that asynchronous commits are lost. The server then kills all others, and recovers. It is used
// like Kill.
func (i *Instance) KillBackend(ctx context.Context, who string) (killed bool, err error) {
	if !i.TryOutage() {
		return false, nil
	}
	if i.Async {
		if writer := i.withhold(ctx); writer != nil {
			i.EndLife()
			return true, writer.Kill()
		}
	}
	var pid int
	err = i.DB.QueryRowContext(ctx, `
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND application_name = $1::text
ORDER BY backend_xid IS NULL LIMIT 1`, "sim "+who).Scan(&pid)
	if err == nil {
		var backend *os.Process
		if backend, err = os.FindProcess(pid); err == nil {
			i.EndLife()
			if err = backend.Kill(); !errors.Is(err, os.ErrProcessDone) {
				return true, err
			}
			i.BeginLife() // it has ended by itself
		}
	}
	i.EndOutage()
	if errors.Is(err, sql.ErrNoRows) || i.Forgive(err) == nil || ctx.Err() != nil {
		err = nil
	}
	return false, i.Mine(ctx, err)
}

// AwaitRecovery ends an outage: it starts the server if that is to be done, and
// returns when it has recovered. It does so also for a run that was
// interrupted, which is to leave a server.
func (i *Instance) AwaitRecovery(start bool) (err error) {
	defer i.EndOutage()
	ctx, cancel := i.Bounded(context.Background(), WaitBound)
	defer cancel()
	if start {
		err = i.Own.Restart(ctx)
	}
	for err == nil {
		if i.recovered(ctx) {
			i.BeginLife()
			return nil
		}
		if !backoff.Sleep(ctx, 5*time.Millisecond) {
			err = ctx.Err()
		}
	}
	return i.GiveUp("the server's recovery from a crash", err)
}

// recovered reports that the server has come back, and marks its new life.
// The harness's connections to the old one are given up.
func (i *Instance) recovered(ctx context.Context) bool {
	i.Refresh()
	result, err := i.DB.ExecContext(ctx, `INSERT INTO sim_life SELECT 1 WHERE NOT EXISTS (SELECT FROM sim_life)`)
	if err != nil {
		return false
	}
	n, err := result.RowsAffected()
	return err == nil && n == 1
}
