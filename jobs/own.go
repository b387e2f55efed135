package jobs

import (
	"context"
	"database/sql"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/pool"
	"github.com/pgfrontier/worker/observe"
)

// on runs statements of the worker's own on a connection of the pool.
func (w *Worker) on(ctx context.Context, f func(conn *sql.Conn) error) error {
	err := pool.On(ctx, w.db, w.limit, w.sweepNow, f)
	if pgdriver.IsPoolClosed(err) {
		w.poolOnce.Do(func() { close(w.poolClosed) })
	}
	return err
}

// planned sends statements of the worker's own through a connection, or its transaction.
func (w *Worker) planned(conn *sql.Conn, on Querier) Querier { return w.db.Plans.On(conn, on) }

// watchPool fails once a statement has found the pool closed. The heartbeats have a
// connection of their own, which a closed pool leaves alone: without unpool the worker
// would keep its jobs, and perhaps lead.
func (w *Worker) watchPool(running context.Context, unpool func(why error)) error {
	select {
	case <-w.poolClosed:
		unpool(ErrPoolClosed)
		return ErrPoolClosed
	case <-running.Done():
		return nil
	}
}

// mostLooping bounds the connections that the loops of all queues use at once: a worker of a
// thousand queues would open as many when it starts.
const mostLooping = 32

// on is [Worker.on] for the statements of a loop, which take turns.
func (l *loop) on(ctx context.Context, f func(conn *sql.Conn) error) error {
	select {
	case l.w.looping <- struct{}{}:
		defer func() { <-l.w.looping }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return l.w.on(ctx, f)
}

// onLoop is [loop.on] for statements with an answer.
func onLoop[T any](ctx context.Context, l *loop, f func(conn *sql.Conn) (T, error)) (answer T, err error) {
	err = l.on(ctx, func(conn *sql.Conn) (err error) {
		answer, err = f(conn)
		return err
	})
	return answer, err
}

// sweep closes the dead among the pool's idle connections each time that somebody
// asks for it.
func (w *Worker) sweep(ctx context.Context) {
	pool.Run(ctx, w.db.DB, w.sweepNow, func(idle, alive int) {
		w.observers.Notify(observe.PoolSwept{Worker: w.source(), Idle: idle, Alive: alive})
	})
}
