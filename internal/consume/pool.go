package consume

import (
	"context"
	"database/sql"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/pool"
	"github.com/pgfrontier/worker/internal/reader"
	"github.com/pgfrontier/worker/observe"
)

// idleConns is how many connections a pool should keep for a worker: those that
// it keeps for itself, those of its occasional statements, one to read ahead, and
// for each partition of a consumer one for its batch. One whose events the log filters reads
// ahead for itself, on two.
func (w *Worker) idleConns() int {
	n := 5
	for _, u := range w.units {
		n += u.demand.Count
		if len(u.types) > 0 {
			n += 2
		}
	}
	return n
}

// pooled is a connection that is taken from the pool for the first statement,
// and kept for those that follow.
type pooled struct {
	w       *Worker
	conn    *sql.Conn    // nil: not taken yet
	session atomic.Int64 // its pid; 0: not known
}

func (p *pooled) take(ctx context.Context) (err error) {
	if p.conn == nil {
		if p.conn, err = p.w.take(ctx, p.w.limits.quick); err == nil {
			p.session.Store(p.w.sessionOf(p.conn))
		}
	}
	return err
}

// giveBack returns the connection, if there is one.
func (p *pooled) giveBack(err error) {
	if p.conn != nil {
		_ = p.w.give(p.conn, err != nil, false) // no handler has had it
		p.conn = nil
	}
}

// aheadBytes is how much of the log a worker keeps in memory for its consumers.
const aheadBytes = 16 << 20

// readConns lends the loops' connections for reading ahead.
type readConns struct{ w *Worker }

// Take waits for its turn among the loops.
func (c readConns) Take(ctx context.Context) (reader.OwnConn, error) {
	if err := c.w.loopConns.take(ctx); err != nil {
		return nil, err
	}
	return &readConn{pooled{w: c.w}}, nil
}

// readConn is a connection of the loops' on which somebody reads ahead.
type readConn struct{ pooled }

// Bounded bounds a read.
func (c *readConn) Bounded(ctx context.Context, read func(ctx context.Context) error) error {
	return c.w.reading(ctx, c.session.Load, read, "")
}

// GiveBack returns the connection and ends its turn.
func (c *readConn) GiveBack(err error) {
	c.giveBack(err)
	c.w.loopConns.release()
}

func (p *pooled) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if err := p.take(ctx); err != nil {
		return nil, err
	}
	return p.w.db.Plans.On(p.conn, p.conn).ExecContext(ctx, query, args...)
}

func (p *pooled) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if err := p.take(ctx); err != nil {
		return nil, err
	}
	return p.w.db.Plans.On(p.conn, p.conn).QueryContext(ctx, query, args...)
}

func (p *pooled) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if err := p.take(ctx); err != nil {
		return pgdriver.FailedRow(ctx, p.w.db.DB, err)
	}
	return p.w.db.Plans.On(p.conn, p.conn).QueryRowContext(ctx, query, args...)
}

func (p *pooled) BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) {
	if err := p.take(ctx); err != nil {
		return nil, err
	}
	return p.conn.BeginTx(ctx, opts)
}

// watchPool says, once, if between two looks the pool closes more than ten
// connections a second because it keeps so few: database/sql keeps two, and each
// other costs the server a new process as soon as somebody needs it again. The pool of
// another pool only gives them back to that.
func (w *Worker) watchPool(ctx context.Context) {
	if w.lent {
		return
	}
	every := min(2*w.cfg.HeartbeatInterval, 10*time.Second)
	tolerated := max(1, int64(10*every/time.Second))
	for before := w.db.Stats().MaxIdleClosed; backoff.Sleep(ctx, every); {
		closed := w.db.Stats().MaxIdleClosed
		if closed-before > tolerated {
			w.observers.Notify(observe.PoolTooSmall{Closed: closed - before, Within: every, Recommended: w.idleConns()})
			return
		}
		before = closed
	}
}

// closedEvery is the pause between two looks whether the pool is closed, which cost nothing.
const closedEvery = time.Second

// watchClosed ends the worker after the program has closed the pool. The connections that the worker keeps
// outlive that, so that heartbeats, which would keep the consumers here, go on.
func (w *Worker) watchClosed(ctx context.Context) error {
	for backoff.Sleep(ctx, closedEvery) {
		if w.db.IsClosed() {
			return ErrPoolClosed
		}
	}
	return nil
}

// sweep closes the dead among the pool's idle connections each time that
// somebody asks for it by sweepNow.
func (w *Worker) sweep(ctx context.Context) {
	pool.Run(ctx, w.db.DB, w.sweepNow, func(idle, alive int) {
		w.observers.Notify(observe.PoolSwept{Worker: w.source(), Idle: idle, Alive: alive})
	})
}
