package jobs

import (
	"context"
	"database/sql"
	"time"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/sweep"
)

// on runs statements of the worker's own on a connection of the pool. It closes the
// connection if one fails: it may lead to another server, or a handler may have left
// a role or a time-out behind in its session, and it would be taken again and again.
//
// If the answer takes long, it makes the worker sweep its pool: others may wait for
// a dead connection, too.
func (w *Worker) on(ctx context.Context, f func(conn *sql.Conn) error) error {
	defer time.AfterFunc(w.limit/2, w.sweepNow.Send).Stop()
	conn, err := w.db.Conn(ctx)
	if err != nil {
		return err
	}
	if err := f(conn); err != nil {
		if pgdriver.IsGone(conn) {
			w.sweepNow.Send()
		}
		pgdriver.Discard(conn)
		return err
	}
	_ = conn.Close()
	return nil
}

// onPool is [Worker.on] for statements with an answer.
func onPool[T any](ctx context.Context, w *Worker, f func(conn *sql.Conn) (T, error)) (answer T, err error) {
	err = w.on(ctx, func(conn *sql.Conn) (err error) {
		answer, err = f(conn)
		return err
	})
	return answer, err
}

// sweep closes the dead among the pool's idle connections each time that somebody
// asks for it.
func (w *Worker) sweep(ctx context.Context) {
	sweep.Run(ctx, w.db, w.sweepNow, func(idle, alive int) {
		tell(w.voice, "PoolSwept", func(o *Observer) func(PoolSweep) { return o.PoolSwept }, PoolSweep{idle, alive})
	})
}
