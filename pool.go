package worker

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// idleConns is how many connections a pool should keep for a worker with so
// many consumers: those that it keeps for itself, those of its occasional
// statements, and for each consumer one for its batch and two to read ahead.
func idleConns(consumers int) int { return 4 + 3*consumers }

// pooled is a connection that is taken from the pool for the first statement,
// and kept for those that follow.
type pooled struct {
	db   *sql.DB
	conn *sql.Conn // nil: not taken yet
}

func (p *pooled) take(ctx context.Context) (err error) {
	if p.conn == nil {
		p.conn, err = p.db.Conn(ctx)
	}
	return err
}

// giveBack returns the connection, if there is one.
func (p *pooled) giveBack(err error) {
	if p.conn != nil {
		giveBack(p.conn, err)
		p.conn = nil
	}
}

func (p *pooled) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if err := p.take(ctx); err != nil {
		return nil, err
	}
	return p.conn.ExecContext(ctx, query, args...)
}

func (p *pooled) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if err := p.take(ctx); err != nil {
		return nil, err
	}
	return p.conn.QueryContext(ctx, query, args...)
}

func (p *pooled) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if err := p.take(ctx); err != nil {
		return p.db.QueryRowContext(ctx, query, args...) // only database/sql can make a Row of an error
	}
	return p.conn.QueryRowContext(ctx, query, args...)
}

func (p *pooled) BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) {
	if err := p.take(ctx); err != nil {
		return nil, err
	}
	return p.conn.BeginTx(ctx, opts)
}

// giveBack returns a connection to its pool. One that leads to another server
// than the worker needs would be taken again and again, so it is closed.
func giveBack(conn *sql.Conn, err error) {
	if errors.Is(err, store.ErrIncarnation) || pgdriver.IsStandby(err) {
		pgdriver.Discard(conn)
		return
	}
	_ = conn.Close()
}

// watchPool says, once, if between two looks the pool closes more than ten
// connections a second because it keeps so few: database/sql keeps two, and each
// other costs the server a new process as soon as somebody needs it again.
func (w *Worker) watchPool(ctx context.Context) {
	every := min(2*w.cfg.HeartbeatInterval, 10*time.Second)
	tolerated := max(1, int64(10*every/time.Second))
	for before := w.db.Stats().MaxIdleClosed; backoff.Sleep(ctx, every); {
		closed := w.db.Stats().MaxIdleClosed
		if closed-before > tolerated {
			w.cfg.Logger.Info(ctx, "the pool closes connections that are needed again at once, as it keeps few idle ones: raise db.SetMaxIdleConns",
				"closed", closed-before, "within", every, "recommended", idleConns(len(w.units)))
			return
		}
		before = closed
	}
}
