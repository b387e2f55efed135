package consume

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/pgfrontier/worker/internal/consume/lockwatch"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/wakeup"
)

// limits are the time limits of all statements outside handlers. A connection may die
// silently, as after a firewall drops it or a machine loses power. A statement on such a
// connection never returns.
type limits struct {
	quick time.Duration // for a statement that touches a few rows, and for taking a connection of the pool
	read  time.Duration // for reads of events, counts and deletions
	lock  time.Duration // the time until the first poll of a guard that waits for a lock
	// watchdog is the time after which a loop is reported as hanging, in addition to its
	// longest pause. It exceeds the time of several statements that get no answer.
	watchdog time.Duration
	// leave is the limit of the last statements when a worker stops.
	leave time.Duration
	// guard is the limit, beyond two batches, of a guard's wait for an unknown blocker.
	guard time.Duration
	// share is the fraction of BatchTimeout after which no further event of a batch begins.
	share float64
}

var usualLimits = limits{
	quick: 5 * time.Second, read: 30 * time.Second, lock: lockwatch.PollEvery, watchdog: 2 * time.Minute,
	leave: 5 * time.Second, guard: 10 * time.Second, share: 0.5,
}

// connections takes the connections of a worker, and bounds what runs on them.
type connections struct {
	db          pgdriver.Pool
	limits      limits
	loopConns   budget
	lookupConns budget // of the reserve
	pooling     pgdriver.Pooling
	nestedPool  bool                                                        // the pool takes its connections from another pool
	sweepNow    *wakeup.Signal                                              // of the pool
	failed      func(ctx context.Context, task, consumer string, err error) // reports a failed task, unless err is nil or ctx has ended
}

// bounded runs a statement that must return within limit. pgx closes the connection of a
// statement that exceeds its limit. A statement slower than limits.quick starts a sweep of
// the pool: other connections may be dead, too.
func (c *connections) bounded(ctx context.Context, limit time.Duration, statement func(ctx context.Context) error) error {
	bound, cancel := context.WithTimeoutCause(ctx, limit, lockwatch.NoAnswer(limit))
	defer cancel()
	defer time.AfterFunc(c.limits.quick, c.sweepNow.Send).Stop()
	err := statement(bound)
	awaitDeadline(bound, err)
	return lockwatch.WithCause(bound, ctx, err)
}

// exec executes a quick statement on a connection of the pool.
func (c *connections) exec(ctx context.Context, query string, args ...any) error {
	return c.bounded(ctx, c.limits.quick, func(ctx context.Context) error {
		_, err := c.db.ExecContext(ctx, query, args...)
		return err
	})
}

// into returns a statement that sets v to the result of read.
func into[T any](v *T, read func(ctx context.Context) (T, error)) func(ctx context.Context) error {
	return func(ctx context.Context) (err error) {
		*v, err = read(ctx)
		return err
	}
}

// awaitDeadline waits for the end of ctx if err is a network timeout and the deadline of
// ctx has passed. The network's deadline is the same, and may fire first.
func awaitDeadline(ctx context.Context, err error) {
	var network net.Error
	deadline, ok := ctx.Deadline()
	if ok && errors.As(err, &network) && network.Timeout() && !time.Now().Before(deadline) {
		<-ctx.Done()
	}
}

// take takes a connection from the pool. The pool checks that an idle connection is alive,
// or opens a new one. If all connections are in use, take waits until one is free.
func (c *connections) take(ctx context.Context, limit time.Duration) (conn *sql.Conn, err error) {
	for {
		err = c.bounded(ctx, limit, into(&conn, func(ctx context.Context) (*sql.Conn, error) { return c.db.Conn(ctx) }))
		if !errors.Is(err, lockwatch.ErrNoAnswer) {
			return conn, err
		}
		c.sweepNow.Send()
		if s := c.db.Stats(); s.MaxOpenConnections == 0 || s.InUse < s.MaxOpenConnections {
			return nil, fmt.Errorf("worker: take a connection: %w", err)
		}
	}
}

// errLeftOpen ends a worker whose handler keeps a connection. database/sql does not take
// back a connection with an open transaction.
var errLeftOpen = errors.New("the handler left a transaction open that it began on the connection of consumer.Conn, and keeps that connection from everybody: begin none there, or end it before returning")

// give returns a connection to the pool. It closes a lost connection, and one on which a
// statement of the worker failed (ours). Such a connection may lead to another server, or
// its session may keep a handler's role or timeout. It would be taken again and again. lent
// reports whether a handler may still use the connection. If the handler left it busy, give
// returns errLeftOpen.
func (c *connections) give(conn *sql.Conn, ours, lent bool) error {
	gone := pgdriver.IsGone(conn)
	if gone {
		c.sweepNow.Send()
	}
	end := conn.Close
	if gone || ours {
		end = func() error { pgdriver.Discard(conn); return nil }
	} else if !lent {
		_ = end() // no handler can keep it: a goroutine would only cost wakeups
		return nil
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = end()
	}()
	timer := time.NewTimer(c.limits.quick)
	defer timer.Stop()
	select {
	case <-ended:
		return nil
	case <-timer.C:
		return errLeftOpen
	}
}

// after returns the limit of a quick statement after a number of failures in a row. The
// limit doubles with each failure, up to three times and up to read: a slow server is not a
// dead one.
func (l *limits) after(failures int) time.Duration {
	return min(l.quick<<min(failures, 3), l.read)
}

// stopGrace is the time that a stop allows beyond the time of the batches in flight. It is
// for handlers that return late, for rollbacks, and for a last outcome lookup.
func (l *limits) stopGrace() time.Duration { return 2 * l.leave }

// stop is how long a stop waits for the batches in flight.
func (l *limits) stop(c *Config) time.Duration {
	return cmp.Or(c.ShutdownTimeout, c.BatchTimeout) + l.stopGrace()
}

// begin begins a batch's transaction on ctx. It calls end, which cancels ctx, if the server
// does not answer within limit or intake ends first.
func begin(ctx context.Context, end context.CancelCauseFunc, intake context.Context, conn *sql.Conn, limit time.Duration) (*sql.Tx, error) {
	silent := time.AfterFunc(limit, func() { end(lockwatch.NoAnswer(limit)) })
	stop := context.AfterFunc(intake, func() { end(context.Cause(intake)) })
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	silent.Stop()
	stop()
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return tx, err
}

// rollback rolls a batch's transaction back, unless the transaction was committed. It calls
// end, which cancels the transaction's context, if the server does not answer within limit.
func rollback(tx *sql.Tx, end context.CancelCauseFunc, limit time.Duration) {
	silent := time.AfterFunc(limit, func() { end(lockwatch.NoAnswer(limit)) })
	defer silent.Stop()
	_ = tx.Rollback() // no effect after the commit
}

// sessionOf returns the pid of the server process behind conn, or 0 if it is unknown.
// lib/pq does not expose the pid, and proxies return one of their own.
func (c *connections) sessionOf(conn *sql.Conn) int64 {
	if !c.pooling.PIDKnown {
		return 0
	}
	return pgdriver.PID(conn)
}

// reading runs a read within limits.read. session returns the read's pid, or 0 while it is
// unknown. consumer is the reading consumer, or empty if several read.
func (c *connections) reading(ctx context.Context, consumer string, session func() int64, read func(ctx context.Context) error) error {
	return c.bounded(ctx, c.limits.read, func(ctx context.Context) error {
		return c.sessions(consumer).Read(ctx, session, c.limits.quick, c.limits.read, read)
	})
}

// sessions reads what the server does for the connections of a consumer.
func (c *connections) sessions(consumer string) lockwatch.Sessions {
	return lockwatch.Sessions{DB: c.db, Failed: func(ctx context.Context, task string, err error) { c.failed(ctx, task, consumer, err) }}
}

// pidOf returns a function that returns the pid of the server process behind conn.
func (c *connections) pidOf(conn *sql.Conn) func() int64 {
	pid := c.sessionOf(conn)
	return func() int64 { return pid }
}

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
