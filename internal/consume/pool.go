package consume

import (
	"context"
	"database/sql"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/reader"
	"github.com/pgfrontier/worker/internal/runtime"
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
// connections to the outer pool, so it is not watched. recommended is the number of idle
// connections that the pool should keep.
func watchPool(ctx context.Context, c *connections, o *runtime.Observers, heartbeat time.Duration, recommended int) {
	if c.nestedPool {
		return
	}
	every := min(2*heartbeat, 10*time.Second)
	tolerated := max(1, int64(10*every/time.Second))
	for before := c.db.Stats().MaxIdleClosed; backoff.Sleep(ctx, every); {
		closed := c.db.Stats().MaxIdleClosed
		if closed-before > tolerated {
			o.Notify(observe.PoolTooSmall{Closed: closed - before, Within: every, Recommended: recommended})
			return
		}
		before = closed
	}
}
