// Package pool closes idle connections of a pool: the dead ones, or all. If one connection has
// died silently, most other connections of the pool are dead, too. Each would block its next user.
package pool

import (
	"context"
	"database/sql"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/wakeup"
)

const (
	// apart is the minimum pause between two calls of CloseDead.
	apart = 5 * time.Second
	// limit bounds how long an idle connection may take to answer.
	limit = 2 * time.Second
)

// Run closes dead idle connections each time the signal is sent, until ctx ends. If some were
// dead, it calls report with the number of idle connections and of those alive.
func Run(ctx context.Context, db *sql.DB, now *wakeup.Signal, report func(idle, alive int)) {
	for {
		asked, ok := now.Sleep(ctx, time.Hour)
		if !ok {
			return
		}
		if !asked {
			continue
		}
		if idle, alive := CloseDead(ctx, db); alive < idle {
			report(idle, alive)
		}
		backoff.Sleep(ctx, apart)
	}
}

// On calls f with a connection of the pool. If f fails, On closes the connection. It may lead to
// another server, or a handler may have left a role or a time-out in its session. The pool would
// then return it to the next user.
//
// If On takes half of limit, it sends the signal, since other users may wait for a dead
// connection, too.
func On(ctx context.Context, db pgdriver.Pool, limit time.Duration, now *wakeup.Signal, f func(conn *sql.Conn) error) error {
	defer time.AfterFunc(limit/2, now.Send).Stop()
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	if err := f(conn); err != nil {
		if pgdriver.IsGone(conn) {
			now.Send()
		}
		pgdriver.Discard(conn)
		return err
	}
	_ = conn.Close()
	return nil
}

// CloseDead pings all idle connections at the same time and closes the dead ones. It returns how
// many connections were idle, and how many of these are alive. It holds the live ones until all
// are pinged, since the pool would otherwise hand them out again first.
func CloseDead(ctx context.Context, db *sql.DB) (idle, alive int) {
	return checkIdle(ctx, db, func(ctx context.Context, conn *sql.Conn) bool { return conn.PingContext(ctx) == nil })
}

// CloseIdle closes all idle connections.
func CloseIdle(ctx context.Context, db *sql.DB) {
	checkIdle(ctx, db, func(context.Context, *sql.Conn) bool { return false })
}

// checkIdle takes all idle connections at the same time. It keeps those for which keep returns
// true, and closes the others.
func checkIdle(ctx context.Context, db *sql.DB, keep func(context.Context, *sql.Conn) bool) (idle, kept int) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var checks sync.WaitGroup
	conns := make([]*sql.Conn, db.Stats().Idle)
	for i := range conns {
		checks.Go(func() {
			conn, err := db.Conn(ctx) // pgx pings a connection that was idle for a second
			if err != nil {
				return
			}
			if !keep(ctx, conn) {
				pgdriver.Discard(conn)
				return
			}
			conns[i] = conn
		})
	}
	checks.Wait()
	for _, conn := range conns {
		if conn != nil {
			kept++
			_ = conn.Close()
		}
	}
	return len(conns), kept
}
