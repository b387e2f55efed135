package jobs

import (
	"context"
	"database/sql"
)

// on runs statements of the worker's own on a connection of the pool.
func (w *Worker) on(ctx context.Context, f func(conn *sql.Conn) error) error {
	return w.pool.On(ctx, w.limit, f)
}

// planned sends statements of the worker's own through a connection, or its transaction.
func (w *Worker) planned(conn *sql.Conn, on Querier) Querier { return w.db.Plans.On(conn, on) }

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
