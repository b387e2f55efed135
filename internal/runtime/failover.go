package runtime

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// ErrFailover reports that the heartbeats and the pool of a worker lead to two servers.
var ErrFailover = errors.New("a connection of the pool leads to another server than the heartbeats: do several servers answer the connection string?")

// StartedSQL is an expression for the time of the server's start, in microseconds. It takes no
// privilege.
var StartedSQL = pgdriver.Microseconds(`pg_postmaster_start_time()`)

// Failover compares the server of a worker's heartbeats with the server of its pool, by the time
// of the server's start. Each is what the latest read has found.
//
// They differ when a standby was promoted and the old primary goes on: connections that survive
// lead to one, new connections to the other. Everything succeeds on both, but the heartbeats miss
// what was claimed on the other, so jobs would run twice.
//
// The token of an incarnation would not do: a server has no token after its promotion, and
// another one after a crash. A crash of the server does not change the time of its start. A
// restart does, and ends all connections.
type Failover struct {
	CloseFor time.Duration // how long idle connections are closed after the servers have differed, or the heartbeats have moved

	mu          sync.Mutex
	beats, pool string    // the servers; empty: unknown
	last        string    // the server of the last heartbeat; Forget keeps it
	differed    bool      // the servers have differed since Forget
	closing     time.Time // until when idle connections are closed
}

// Beat records the server of a heartbeat, and reports whether the pool leads to another server.
func (f *Failover) Beat(server string) (differ bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last != "" && f.last != server { // idle connections may lead to the earlier server
		f.closing = time.Now().Add(f.CloseFor)
	}
	f.beats, f.last = server, server
	return f.compare()
}

// found records the server of a connection of the pool, and reports whether the heartbeats lead
// to another server.
func (f *Failover) found(server string) (differ bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pool = server
	return f.compare()
}

func (f *Failover) compare() (differ bool) {
	if differ = f.beats != "" && f.pool != "" && f.beats != f.pool; differ {
		f.differed, f.closing = true, time.Now().Add(f.CloseFor)
	}
	return differ
}

// HasDiffered reports whether the servers have differed since Forget.
func (f *Failover) HasDiffered() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.differed
}

// Forget forgets both servers. After a failure, or on another connection, the server may be
// another one.
func (f *Failover) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.beats, f.pool, f.differed = "", "", false
}

func (f *Failover) closes() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Now().Before(f.closing)
}

// Watch reads every so often where the pool leads, until ctx ends. A read may take as long as
// limit. report gets the result of each read; nil: the heartbeats report it.
//
// Watch closes idle connections that may lead to another server than the heartbeats, for CloseFor
// also those that are returned later. A pool gives out first what was returned last. Without
// Watch, an old connection below newer ones would be used only once a burst of jobs takes it. A
// new connection leads where the connection string does.
func (f *Failover) Watch(ctx context.Context, p *Pool, every, limit time.Duration, report func(error)) {
	for backoff.Sleep(ctx, every) {
		err := f.read(ctx, p, limit)
		if f.closes() {
			p.closeIdle(ctx)
		}
		if report != nil && ctx.Err() == nil {
			report(err)
		}
	}
}

// read reads where a connection of the pool leads.
func (f *Failover) read(ctx context.Context, p *Pool, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return p.On(ctx, limit, func(conn *sql.Conn) error {
		server, err := Server(ctx, conn)
		if err == nil && f.found(server) {
			err = ErrFailover
		}
		return err
	})
}

// Server returns the server to which a connection leads.
func Server(ctx context.Context, on *sql.Conn) (server string, err error) {
	if err := on.QueryRowContext(ctx, `SELECT `+StartedSQL).Scan(&server); err != nil {
		return "", fmt.Errorf("read which server this is: %w", err)
	}
	return server, nil
}
