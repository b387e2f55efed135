// Package sweep closes the dead among a pool's idle connections, or all of these.
// When one connection has died in silence, most others of the pool have, too, and
// each would hold up the next caller.
package sweep

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
	// apart is the least pause between two sweeps.
	apart = 5 * time.Second
	// limit is the time that an idle connection has to show that it lives.
	limit = 2 * time.Second
)

// Run sweeps each time that somebody sends the signal, until ctx ends. It tells how
// many connections were idle and how many of them live, if some do not.
func Run(ctx context.Context, db *sql.DB, now *wakeup.Signal, tell func(idle, alive int)) {
	for {
		asked, ok := now.Sleep(ctx, time.Hour)
		if !ok {
			return
		}
		if !asked {
			continue
		}
		if idle, alive := Idle(ctx, db); alive < idle {
			tell(idle, alive)
		}
		backoff.Sleep(ctx, apart)
	}
}

// On runs statements on a connection of the pool. It closes the connection if one
// fails: it may lead to another server, or a handler may have left a role or a
// time-out behind in its session, and it would be taken again and again.
//
// If the answer takes half of a limit, On sends the signal: others may wait for a dead
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

// Idle tries all idle connections at the same time, closes the dead, and returns
// how many there were and how many of these live. It holds those until it has tried
// all: the pool would give them out again first.
func Idle(ctx context.Context, db *sql.DB) (idle, alive int) {
	return try(ctx, db, func(ctx context.Context, conn *sql.Conn) bool { return conn.PingContext(ctx) == nil })
}

// Close closes all idle connections.
func Close(ctx context.Context, db *sql.DB) {
	try(ctx, db, func(context.Context, *sql.Conn) bool { return false })
}

func try(ctx context.Context, db *sql.DB, keep func(context.Context, *sql.Conn) bool) (idle, kept int) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var trials sync.WaitGroup
	conns := make([]*sql.Conn, db.Stats().Idle)
	for i := range conns {
		trials.Go(func() {
			conn, err := db.Conn(ctx) // with pgx, this tries it if it was idle for a second
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
	trials.Wait()
	for _, conn := range conns {
		if conn != nil {
			kept++
			_ = conn.Close()
		}
	}
	return len(conns), kept
}
