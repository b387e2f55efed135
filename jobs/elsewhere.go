package jobs

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/runtime"
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
	last          string // the server of the last heartbeat; forget keeps it
	moved         bool   // the heartbeats have changed servers, and hasMoved has not told it
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

// hasMoved reports whether the heartbeats have changed servers since the last call.
func (h *home) hasMoved() (moved bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	moved, h.moved = h.moved, false
	return moved
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
// server than the heartbeats go to, or did before a failover, and for the heartbeat time-out
// those that are given back later. A pool gives out first what came back last: without that, an
// old connection below newer ones would be used only once a burst of jobs takes it. Package coord
// gives its session up, too. What is opened then leads where the connection string does.
func (w *Worker) watchServer(ctx context.Context) {
	for until := time.Now(); backoff.Sleep(ctx, w.cfg.heartbeat); {
		bounded, cancel := context.WithTimeout(ctx, w.limit)
		err := w.on(bounded, func(conn *sql.Conn) error {
			var started string
			err := conn.QueryRowContext(bounded, `SELECT `+startedSQL).Scan(&started)
			switch {
			case err != nil:
				return fmt.Errorf("jobs: look which server this is: %w", err)
			case w.home.found(started):
				return errElsewhere
			}
			return nil
		})
		cancel()
		if errors.Is(err, errElsewhere) || w.home.hasMoved() {
			until = time.Now().Add(w.cfg.heartbeatTimeout)
		}
		if time.Now().Before(until) {
			runtime.CloseIdle(ctx, w.db.DB)
		}
		if ctx.Err() == nil {
			w.taskFailed("compare servers", err)
		}
	}
}
