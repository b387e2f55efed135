package table

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
	"github.com/pgfrontier/worker/store"
)

// home is when the server was started that the worker works on, as the connection of the
// heartbeats has found it last, and as another of the pool has. 0: it has not looked.
//
// They differ when a standby was promoted and the old primary goes on: connections that
// survive lead to one, new ones to the other. Everything succeeds on both, but the
// heartbeats miss what was claimed on the other. A crash of the server does not change
// the time. A restart does, and ends all connections.
type home struct {
	mu          sync.Mutex
	pulse, pool int64     // in microseconds
	last        int64     // the server of the last heartbeat; forget keeps it
	apart       bool      // they have differed, and the heartbeats have not told it
	closing     time.Time // until when idle connections are closed
}

// beatsAt records the server of the heartbeats, and reports whether the pool has led
// to another.
func (h *home) beatsAt(server int64, while time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last != 0 && h.last != server { // idle connections may lead to the earlier one
		h.closing = time.Now().Add(while)
	}
	h.pulse, h.last = server, server
	h.compare(while)
	return h.apart
}

// leadsTo records the server of another connection, and reports whether that is not
// the one of the heartbeats.
func (h *home) leadsTo(server int64, while time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pool = server
	return h.compare(while)
}

// compare has idle connections closed for a while if there are two servers.
func (h *home) compare(while time.Duration) (differ bool) {
	if differ = h.pulse != 0 && h.pool != 0 && h.pulse != h.pool; differ {
		h.apart, h.closing = true, time.Now().Add(while)
	}
	return differ
}

// forget is for when the heartbeats get another connection, or the server may have been
// restarted: what was found before counts no more.
func (h *home) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pulse, h.pool, h.apart = 0, 0, false
}

// closes reports whether idle connections are to be closed.
func (h *home) closes() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Now().Before(h.closing)
}

var errElsewhere = errors.New("jobs/table: a connection of the pool leads to another server than the heartbeats: do several servers answer the connection string?")

// serverSQL is when the server was started, in microseconds. That takes no privilege.
var serverSQL = pgdriver.Microseconds(`pg_postmaster_start_time()`)

// findServer asks which server a connection leads to.
func findServer(ctx context.Context, on store.Querier) (server int64, err error) {
	if err := on.QueryRowContext(ctx, `SELECT `+serverSQL).Scan(&server); err != nil {
		return 0, fmt.Errorf("jobs/table: look which server this is: %w", err)
	}
	return server, nil
}

// watchServer looks where the pool leads until ctx ends. It closes idle connections when
// that is another server than the one of the heartbeats, or when these have moved to another
// one, and for StalledMaxAge those that are given back later. What is opened then leads where
// the connection string does. The heartbeats tell of it, and take another connection. What
// else fails, others tell.
func (w *Worker) watchServer(ctx context.Context) {
	for backoff.Sleep(ctx, w.opts.HeartbeatInterval) {
		_ = w.on(ctx, func(ctx context.Context, conn *sql.Conn) error {
			server, err := findServer(ctx, conn)
			if err == nil && w.home.leadsTo(server, w.store.settings.stalled) {
				err = errElsewhere
			}
			return err
		})
		if w.home.closes() {
			runtime.CloseIdle(ctx, w.store.db.DB)
		}
	}
}
