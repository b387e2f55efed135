package consume

import (
	"context"
	"database/sql"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/reader"
	"github.com/pgfrontier/worker/observe"
)

// idleConns is the number of idle connections that a pool should keep for a worker of these
// units. The worker uses five: its own, those of occasional statements, and one to read
// ahead. Each partition of a consumer adds one for its batch. A consumer that names types
// reads ahead for itself and adds two.
func (s *unitSet) idleConns() int {
	n := 5
	for _, u := range s.units {
		n += u.demand.Count
		if len(u.types) > 0 {
			n += 2
		}
	}
	return n
}

// pooled is a connection of the pool that is taken for the first statement and kept for the
// following statements.
type pooled struct {
	of      *connections
	conn    *sql.Conn    // nil: not taken yet
	session atomic.Int64 // the pid of its server process; 0: unknown
}

func (p *pooled) take(ctx context.Context) (err error) {
	if p.conn == nil {
		if p.conn, err = p.of.take(ctx, p.of.limits.quick); err == nil {
			p.session.Store(p.of.sessionOf(p.conn))
		}
	}
	return err
}

// giveBack returns the connection to the pool, if one was taken. err is the error of its
// statements.
func (p *pooled) giveBack(err error) {
	if p.conn != nil {
		_ = p.of.give(p.conn, err != nil, false) // no handler has used it
		p.conn = nil
	}
}

// onPooled runs statements within limit on a connection of the pool. It takes the connection
// for the first statement.
func (c *connections) onPooled(ctx context.Context, limit time.Duration, do func(ctx context.Context, conn *pooled) error) error {
	conn := &pooled{of: c}
	err := c.bounded(ctx, limit, func(ctx context.Context) error { return do(ctx, conn) })
	conn.giveBack(err)
	return err
}

// aheadBytes is how many bytes of the log a worker keeps in memory for its consumers.
const aheadBytes = 16 << 20

// readConns lends the loops' connections for reading ahead.
type readConns struct{ *connections }

// Take waits for a connection of the loops' budget.
func (c readConns) Take(ctx context.Context) (reader.OwnConn, error) {
	if err := c.loopConns.take(ctx); err != nil {
		return nil, err
	}
	return &readConn{pooled{of: c.connections}}, nil
}

// readConn is a connection of the loops' budget that is used for reading ahead.
type readConn struct{ pooled }

// Bounded runs a read within the time limit of reads.
func (c *readConn) Bounded(ctx context.Context, read func(ctx context.Context) error) error {
	return c.of.reading(ctx, "", c.session.Load, read)
}

// GiveBack returns the connection to the pool and to the budget.
func (c *readConn) GiveBack(err error) {
	c.giveBack(err)
	c.of.loopConns.release()
}

func (p *pooled) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if err := p.take(ctx); err != nil {
		return nil, err
	}
	return p.of.db.Plans.On(p.conn, p.conn).ExecContext(ctx, query, args...)
}

func (p *pooled) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if err := p.take(ctx); err != nil {
		return nil, err
	}
	return p.of.db.Plans.On(p.conn, p.conn).QueryContext(ctx, query, args...)
}

func (p *pooled) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if err := p.take(ctx); err != nil {
		return pgdriver.FailedRow(ctx, p.of.db.DB, err)
	}
	return p.of.db.Plans.On(p.conn, p.conn).QueryRowContext(ctx, query, args...)
}

func (p *pooled) BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) {
	if err := p.take(ctx); err != nil {
		return nil, err
	}
	return p.conn.BeginTx(ctx, opts)
}

// watchPool reports, once, that the pool closes more than ten idle connections a second.
// database/sql keeps two idle connections by default. Each further connection costs the
// server a new process whenever it is needed again. A nested pool only returns its
// connections to the outer pool, so it is not watched.
func watchPool(ctx context.Context, e *env, heartbeat time.Duration) {
	if e.nestedPool {
		return
	}
	every := min(2*heartbeat, 10*time.Second)
	tolerated := max(1, int64(10*every/time.Second))
	for before := e.db.Stats().MaxIdleClosed; backoff.Sleep(ctx, every); {
		closed := e.db.Stats().MaxIdleClosed
		if closed-before > tolerated {
			e.observers.Notify(observe.PoolTooSmall{Closed: closed - before, Within: every, Recommended: e.idleConns()})
			return
		}
		before = closed
	}
}

// releaseFunc returns a connection to the pool. ours reports whether a statement of the
// worker failed on the connection. lent reports whether a handler may still use the connection.
type releaseFunc func(ours, lent bool) error

// heldConn is the connection that a loop holds for one iteration.
type heldConn struct {
	*sql.Conn
	giveBack releaseFunc  // nil: no connection is held
	lent     atomic.Int32 // how many uses of the connection by a handler have not ended
}

// lend records that a handler uses the connection, until back is called. Any goroutine may call both.
func (h *heldConn) lend() (back func()) {
	h.lent.Add(1)
	return func() { h.lent.Add(-1) }
}

// release returns the connection, if one is held. left is the error of a handler that left
// the connection unusable.
func (h *heldConn) release(ours bool) (left error) {
	if giveBack := h.giveBack; giveBack != nil {
		h.giveBack = nil
		left = giveBack(ours, h.lent.Load() > 0)
	}
	return left
}

// loopConn takes a connection of the pool for a loop. A loop must hold no other connection:
// loops that hold one and wait for a second could deadlock. limit applies to the wait for
// the pool, not to the wait for the budget. The caller calls release once.
func (c *connections) loopConn(ctx context.Context, limit time.Duration) (conn *sql.Conn, release releaseFunc, err error) {
	return c.budgeted(ctx, c.loopConns, limit)
}

// lookupConn takes a connection for an outcome lookup. The connection comes from the
// reserve, for one loop at a time. So a lookup does not wait until handlers return.
func (c *connections) lookupConn(ctx context.Context, limit time.Duration) (conn *sql.Conn, release releaseFunc, err error) {
	return c.budgeted(ctx, c.lookupConns, limit)
}

func (c *connections) budgeted(ctx context.Context, b budget, limit time.Duration) (conn *sql.Conn, release releaseFunc, err error) {
	if err := b.take(ctx); err != nil {
		return nil, nil, err
	}
	if conn, err = c.take(ctx, limit); err != nil {
		b.release()
		return nil, nil, err
	}
	return conn, func(ours, lent bool) error {
		defer b.release()
		return c.give(conn, ours, lent)
	}, nil
}

// inTransaction runs a short transaction on a connection of the loops' budget. quick limits
// the wait for the connection, and limit the transaction.
func (c *connections) inTransaction(ctx context.Context, quick, limit time.Duration, do func(ctx context.Context, tx *sql.Tx) error) (err error) {
	conn, release, err := c.loopConn(ctx, quick)
	if err != nil {
		return err
	}
	defer func() { _ = release(err != nil, false) }()
	return c.bounded(ctx, limit, func(ctx context.Context) error {
		tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // no effect after the commit
		return do(ctx, tx)
	})
}
