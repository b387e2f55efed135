package consume

import (
	"context"
	"database/sql"
	"sync/atomic"
	"time"
)

// reserve is the number of connections of a limited pool that the loops leave free. They
// are for the frontier's session, the coordination's session and occasional statements.
const reserve = 3

// budget limits the number of connections that the loops hold at a time. So a heartbeat
// never waits for a handler. A nil budget has no limit and belongs to an unlimited pool.
type budget chan struct{}

func newBudget(maxOpenConns int) budget {
	if maxOpenConns <= 0 {
		return nil
	}
	return make(budget, max(maxOpenConns-reserve, 1))
}

// take waits for a free connection of the budget, or until ctx ends.
func (b budget) take(ctx context.Context) error {
	if b == nil {
		return nil
	}
	select {
	case b <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b budget) release() {
	if b != nil {
		<-b
	}
}

// releaseFunc returns a connection to the pool. ours reports whether a statement of the
// worker failed on the connection. lent reports whether a handler has used the connection.
type releaseFunc func(ours, lent bool) error

// heldConn is the connection that a loop holds for one iteration.
type heldConn struct {
	*sql.Conn
	giveBack releaseFunc // nil: no connection is held
	lent     atomic.Bool // a handler has used the connection
}

// lend records that a handler uses the connection. Any goroutine may call it.
func (h *heldConn) lend() { h.lent.Store(true) }

// release returns the connection, if one is held. left is the error of a handler that left
// the connection unusable.
func (h *heldConn) release(ours bool) (left error) {
	if giveBack := h.giveBack; giveBack != nil {
		h.giveBack = nil
		left = giveBack(ours, h.lent.Load())
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
