package runtime

import (
	"context"
	"database/sql"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/wakeup"
)

// closedEvery is the pause between two checks whether the pool is closed. A check costs no
// round trip.
const closedEvery = time.Second

// Pool is the pool of a worker, for the worker's own statements.
type Pool struct {
	SweepNow *wakeup.Signal // wakes Sweep

	db        pgdriver.Pool
	err       error // the worker's error after the pool was closed
	observers *Observers
	closed    chan struct{}
	close     func() // closes closed, once
}

// NewPool returns the Pool of a worker. err is the worker's error after db was closed.
func NewPool(db pgdriver.Pool, err error, observers *Observers) *Pool {
	closed := make(chan struct{})
	return &Pool{SweepNow: wakeup.New(), db: db, err: err, observers: observers, closed: closed, close: sync.OnceFunc(func() { close(closed) })}
}

// On calls f with a connection of the pool. If f fails, On closes the connection. It may lead to
// another server, or a handler may have left a role or a time-out in its session. The pool would
// then return it to the next user.
//
// limit is the bound of ctx. If On takes half of limit, it wakes Sweep, since other users may wait
// for a dead connection, too.
func (p *Pool) On(ctx context.Context, limit time.Duration, f func(conn *sql.Conn) error) error {
	defer time.AfterFunc(limit/2, p.SweepNow.Send).Stop()
	conn, err := p.db.Conn(ctx)
	if err != nil {
		p.Note(err)
		return err
	}
	if err := f(conn); err != nil {
		p.Note(err)
		if pgdriver.IsGone(conn) {
			p.SweepNow.Send()
		}
		pgdriver.Discard(conn)
		return err
	}
	_ = conn.Close()
	return nil
}

// Note records that a statement has found the pool closed, if err says so.
func (p *Pool) Note(err error) {
	if pgdriver.IsPoolClosed(err) {
		p.close()
	}
}

// AwaitClose ends the worker after the program has closed the pool. It calls abandon, which may be
// nil, with the worker's error, and returns this error. It returns nil when ctx ends.
//
// Connections that the worker holds survive the close. Heartbeats on such a connection would keep
// the worker's work from other workers.
func (p *Pool) AwaitClose(ctx context.Context, abandon func(why error)) error {
	tick := time.NewTicker(closedEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if p.db.IsClosed() {
				p.close()
			}
		case <-p.closed:
			if abandon != nil {
				abandon(p.err)
			}
			return p.err
		case <-ctx.Done():
			return nil
		}
	}
}
