package runtime

import (
	"context"
	"database/sql"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/observe"
)

const (
	// sweepPause is the minimum pause between two sweeps.
	sweepPause = 5 * time.Second
	// pingLimit bounds how long an idle connection may take to answer.
	pingLimit = 2 * time.Second
)

// Sweep closes dead idle connections each time that SweepNow is sent, until ctx ends. If one
// connection has died silently, most other connections of the pool are dead, too. Each would block
// its next user.
func (p *Pool) Sweep(ctx context.Context) {
	for {
		asked, ok := p.SweepNow.Sleep(ctx, time.Hour)
		if !ok {
			return
		}
		if !asked {
			continue
		}
		if idle, alive := closeDead(ctx, p.db.DB); alive < idle {
			p.observers.Notify(observe.PoolSwept{Worker: p.observers.worker, Idle: idle, Alive: alive})
		}
		backoff.Sleep(ctx, sweepPause)
	}
}

// closeDead pings all idle connections at the same time and closes the dead ones. It returns how
// many connections were idle, and how many of these are alive. It holds the live ones until all
// are pinged, since the pool would otherwise hand them out again first.
func closeDead(ctx context.Context, db *sql.DB) (idle, alive int) {
	return checkIdle(ctx, db, func(ctx context.Context, conn *sql.Conn) bool { return conn.PingContext(ctx) == nil })
}

// closeIdle closes all idle connections.
func (p *Pool) closeIdle(ctx context.Context) {
	checkIdle(ctx, p.db.DB, func(context.Context, *sql.Conn) bool { return false })
}

// checkIdle takes all idle connections at the same time. It keeps those for which keep returns
// true, and closes the others.
func checkIdle(ctx context.Context, db *sql.DB, keep func(context.Context, *sql.Conn) bool) (idle, kept int) {
	ctx, cancel := context.WithTimeout(ctx, pingLimit)
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
