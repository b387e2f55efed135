package jobs

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/sweep"
)

// home is the server that the worker works on, by the time of its start: as the session
// of the heartbeats has found it last, and as a connection of the pool has. Empty: not
// known.
//
// They differ when a standby was promoted and the old primary goes on: sessions that
// survive lead to one, new ones to the other. Everything succeeds on both. A claim
// is random, so no statement on one finds what was claimed on the other, but jobs
// would run twice, and heartbeats would not be seen where the jobs are.
//
// The token of an incarnation would not do: a server has none after its promotion, and
// another one after a crash.
type home struct {
	mu            sync.Mutex
	session, pool string
	last          string // that a heartbeat has found, also before a failure
	moved         bool   // the heartbeats have had two servers
}

// isElsewhere records the server of a heartbeat, and reports whether the pool leads to
// another.
func (h *home) isElsewhere(started string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.moved = h.moved || h.last != "" && h.last != started
	h.session, h.last = started, started
	return h.differ()
}

// hasMoved reports whether the pool may have connections to an earlier server.
func (h *home) hasMoved() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.moved
}

// found is the same for a connection of the pool.
func (h *home) found(started string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pool = started
	return h.differ()
}

// forget forgets both: after a failure the server may be another one.
func (h *home) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.session, h.pool = "", ""
}

func (h *home) differ() bool { return h.session != "" && h.pool != "" && h.session != h.pool }

// startedSQL is an expression for the time of the server's start.
var startedSQL = pgdriver.Microseconds(`pg_postmaster_start_time()`) + `::text`

var errElsewhere = errors.New("a connection of the pool leads to another server than the heartbeats: do several servers answer the connection string?")

// watchServer closes the idle connections of the pool when they may lead to another
// server than the heartbeats go to, and for a while those that are given back later.
// Package coord gives its session up, too. What is opened then leads where the
// connection string does. Once the server was another one, watchServer looks at all idle
// connections each time: a handler may give one back after hours.
func (w *Worker) watchServer(ctx context.Context) {
	for until := time.Now(); backoff.Sleep(ctx, w.cfg.heartbeat); {
		bounded, cancel := context.WithTimeout(ctx, w.limit)
		err := w.on(bounded, func(conn *sql.Conn) error {
			return w.checkServer(bounded, conn)
		})
		cancel()
		if errors.Is(err, errElsewhere) || w.home.hasMoved() && w.anyElsewhere(ctx) {
			until = time.Now().Add(w.cfg.heartbeatTimeout)
		}
		if time.Now().Before(until) {
			sweep.Close(ctx, w.db.DB)
		}
		if ctx.Err() == nil {
			w.taskFailed("compare servers", err)
		}
	}
}

// anyElsewhere looks at all idle connections. It closes none that answers: the heartbeats may be
// those that are on the wrong server.
func (w *Worker) anyElsewhere(ctx context.Context) bool {
	var elsewhere atomic.Bool
	sweep.Keep(ctx, w.db.DB, func(ctx context.Context, conn *sql.Conn) bool {
		err := w.checkServer(ctx, conn)
		if errors.Is(err, errElsewhere) {
			elsewhere.Store(true)
			return true
		}
		return err == nil
	})
	return elsewhere.Load()
}

// checkServer fails if a connection of the pool leads to another server than the heartbeats.
func (w *Worker) checkServer(ctx context.Context, conn *sql.Conn) error {
	var started string
	err := conn.QueryRowContext(ctx, `SELECT `+startedSQL).Scan(&started)
	switch {
	case err != nil:
		return fmt.Errorf("jobs: look which server this is: %w", err)
	case w.home.found(started):
		return errElsewhere
	}
	return nil
}
