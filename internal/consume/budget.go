package consume

import (
	"context"
	"database/sql"
	"time"
)

// reserve is how many connections of a limited pool the loops leave to the
// frontier's session, to the coordination's, and to an occasional statement.
const reserve = 3

// budget bounds how many connections the loops hold at a time. So a heartbeat
// never waits for a handler. The nil budget, of an unlimited pool, is endless.
type budget chan struct{}

func newBudget(maxOpenConns int) budget {
	if maxOpenConns <= 0 {
		return nil
	}
	return make(budget, max(maxOpenConns-reserve, 1))
}

// take waits its turn, or until ctx ends.
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

// releaseFunc gives a connection back. ours: a statement of the worker failed on
// it. lent: a handler has had it in hand.
type releaseFunc func(ours, lent bool) error

// loopConn takes a connection of the pool for a loop, which must hold no other
// one: all loops waiting with one in hand for another could wait for ever.
// limit bounds the pool's part, once it is the loop's turn. Call release once.
func (w *Worker) loopConn(ctx context.Context, limit time.Duration) (conn *sql.Conn, release releaseFunc, err error) {
	return w.budgeted(ctx, w.loopConns, limit)
}

// inquiryConn is loopConn for a look at what became of a batch. It does not
// wait until handlers end: it is of the reserve, for one loop at a time.
func (w *Worker) inquiryConn(ctx context.Context, limit time.Duration) (conn *sql.Conn, release releaseFunc, err error) {
	return w.budgeted(ctx, w.inquiryConns, limit)
}

func (w *Worker) budgeted(ctx context.Context, b budget, limit time.Duration) (conn *sql.Conn, release releaseFunc, err error) {
	if err := b.take(ctx); err != nil {
		return nil, nil, err
	}
	if conn, err = w.take(ctx, limit); err != nil {
		b.release()
		return nil, nil, err
	}
	return conn, func(ours, lent bool) error {
		defer b.release()
		return w.give(conn, ours, lent)
	}, nil
}
