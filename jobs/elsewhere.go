package jobs

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/incarnation"
	"github.com/pgfrontier/worker/internal/sweep"
)

// home is the incarnation of the server that the worker works on, as the session of
// the heartbeats has found it last, and as a connection of the pool has. Nil: neither
// has looked. Empty: nobody has put a token there, as on a server that was promoted.
//
// They differ when a standby was promoted and the old primary goes on: sessions that
// survive lead to one, new ones to the other. Everything succeeds on both. A claim
// is random, so no statement on one finds what was claimed on the other, but jobs
// would run twice, and heartbeats would not be seen where the jobs are.
type home struct {
	mu            sync.Mutex
	session, pool *string
}

// isElsewhere takes note of a heartbeat's server, and reports whether the pool leads
// to another.
func (h *home) isElsewhere(incarnation string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.session = &incarnation
	return h.differ()
}

// found is the same for a connection of the pool.
func (h *home) found(incarnation string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pool = &incarnation
	return h.differ()
}

// forget is for when the server may have crashed: what was found before it counts no
// more, and a token is put there soon.
func (h *home) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.session, h.pool = nil, nil
}

func (h *home) differ() bool { return h.session != nil && h.pool != nil && *h.session != *h.pool }

// incarnationSQL is an expression for the server's incarnation.
func (w *Worker) incarnationSQL() string {
	return incarnation.Of(w.tables.Token, "", "", `(SELECT oid FROM pg_database WHERE datname = current_database())`)
}

var errElsewhere = errors.New("a connection of the pool leads to another server than the heartbeats: do several servers answer the connection string?")

// watchServer closes the idle connections of the pool when they may lead to another
// server than the heartbeats go to, and for a while those that are given back later.
// Package coord gives its session up, too. What is opened then leads where the
// connection string does.
func (w *Worker) watchServer(ctx context.Context) {
	for until := time.Now(); backoff.Sleep(ctx, w.cfg.heartbeat); {
		bounded, cancel := context.WithTimeout(ctx, w.limit)
		err := w.on(bounded, func(conn *sql.Conn) error {
			var at string
			err := conn.QueryRowContext(bounded, `SELECT coalesce(`+w.incarnationSQL()+`, '')`).Scan(&at)
			switch {
			case err != nil:
				return fmt.Errorf("jobs: look which server this is: %w", err)
			case w.home.found(at):
				return errElsewhere
			}
			return nil
		})
		cancel()
		if errors.Is(err, errElsewhere) {
			until = time.Now().Add(w.cfg.heartbeatTimeout)
		}
		if time.Now().Before(until) {
			sweep.Close(ctx, w.db)
		}
		if ctx.Err() == nil {
			w.taskFailed("compare servers", err)
		}
	}
}
