package consume

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/pgfrontier/worker/internal/pgdriver"
)

// Every statement outside of handlers has a bound. A connection may die in
// silence: a firewall forgets it, a machine is unplugged. A statement on it
// never gets an answer.
type limits struct {
	quick time.Duration // for a statement that touches a few rows, and for a connection of the pool
	read  time.Duration // for events, counts and deletions
	lock  time.Duration // until a guard that waits for a lock is looked at for the first time
	// notify is the pause between two looks whether notifications arrive. They
	// take milliseconds.
	notify time.Duration
	// turn is after what time a loop hangs, beyond its longest pause: longer than
	// some statements that get no answer.
	turn time.Duration
	// leave is for the last statements when a worker stops.
	leave time.Duration
	// guard bounds, beyond two batches, the wait of a guard whose blocker is unknown.
	guard time.Duration
	// share is the part of BatchTimeout after which no further event of a batch begins.
	share float64
}

var usualLimits = limits{
	quick: 5 * time.Second, read: 30 * time.Second, lock: pollSessionEvery, notify: 5 * time.Second, turn: 2 * time.Minute,
	leave: 5 * time.Second, guard: 10 * time.Second, share: 0.5,
}

// errNoAnswer is what a statement fails with whose bound has passed.
var errNoAnswer error = unanswered{}

type unanswered struct{}

func (unanswered) Error() string        { return "no answer, gave up the connection" }
func (unanswered) Is(target error) bool { return target == pgdriver.ErrSilent }

func noAnswer(limit time.Duration) error { return fmt.Errorf("%w after %v", errNoAnswer, limit) }

// bounded runs a statement that is to be answered within limit. pgx closes the
// connection of one that is not. One that takes longer than a quick one makes
// the worker sweep its pool: others may wait for a dead connection, too.
func (w *Worker) bounded(ctx context.Context, limit time.Duration, statement func(ctx context.Context) error) error {
	bound, cancel := context.WithTimeoutCause(ctx, limit, noAnswer(limit))
	defer cancel()
	defer time.AfterFunc(w.limits.quick, w.sweepNow.Send).Stop()
	err := statement(bound)
	awaitDeadline(bound, err)
	return why(bound, ctx, err)
}

// awaitDeadline waits for the end of ctx if err comes from its deadline: that of the network, which
// is the same, may fire first.
func awaitDeadline(ctx context.Context, err error) {
	var network net.Error
	deadline, ok := ctx.Deadline()
	if ok && errors.As(err, &network) && network.Timeout() && !time.Now().Before(deadline) {
		<-ctx.Done()
	}
}

// why tells that it was the bound that ended a statement, not what is around it.
func why(bound, around context.Context, err error) error {
	if err != nil && around.Err() == nil && bound.Err() != nil {
		return fmt.Errorf("%w: %w", context.Cause(bound), err)
	}
	return err
}

// take takes a connection from the pool, which tries whether it is alive, or
// makes one. If all are in use, it waits until one is free.
func (w *Worker) take(ctx context.Context, limit time.Duration) (conn *sql.Conn, err error) {
	for {
		err = w.bounded(ctx, limit, func(ctx context.Context) (err error) {
			conn, err = w.db.Conn(ctx)
			return err
		})
		if !errors.Is(err, errNoAnswer) {
			return conn, err
		}
		w.sweepNow.Send()
		if s := w.db.Stats(); s.MaxOpenConnections == 0 || s.InUse < s.MaxOpenConnections {
			return nil, fmt.Errorf("worker: take a connection: %w", err)
		}
	}
}

// errLeftOpen ends a worker whose handler keeps a connection: database/sql takes
// none back on which a transaction is open.
var errLeftOpen = errors.New("the handler left a transaction open that it began on the connection of consumer.Conn, and keeps that connection from everybody: begin none there, or end it before returning")

// give gives a connection back to the pool. It closes one that is lost, and one
// on which a statement of ours failed: it
// may lead to another server, or a handler may have left a role or a time-out
// behind in its session, and it would be taken again and again. If a handler has
// had the connection in hand, it may have left it busy: then give returns
// errLeftOpen.
func (w *Worker) give(conn *sql.Conn, ours, lent bool) error {
	gone := pgdriver.IsGone(conn)
	if gone {
		w.sweepNow.Send()
	}
	end := conn.Close
	if gone || ours {
		end = func() error { pgdriver.Discard(conn); return nil }
	} else if !lent {
		_ = end() // nobody can keep it: no need for a goroutine, whose wake-ups each batch would pay
		return nil
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = end()
	}()
	timer := time.NewTimer(w.limits.quick)
	defer timer.Stop()
	select {
	case <-ended:
		return nil
	case <-timer.C:
		return errLeftOpen
	}
}

// quickLimit is how long the loop waits for a connection, or for the answer to a
// quick statement.
func (c *consumerLoop) quickLimit() time.Duration { return c.w.limits.after(c.tally.disturbed) }

// after is the bound of a quick statement after some failures in a row. It grows from try
// to try: slow is not dead.
func (l *limits) after(failures int) time.Duration {
	return min(l.quick<<min(failures, 3), l.read)
}

// quickly runs a statement that touches a few rows.
func (c *consumerLoop) quickly(ctx context.Context, statement func(ctx context.Context) error) error {
	return c.w.bounded(ctx, c.quickLimit(), statement)
}

// begin begins a batch's transaction. That lives on ctx, which end ends if
// there is no answer, or if intake ends before there is one.
func (c *consumerLoop) begin(ctx context.Context, end context.CancelCauseFunc, intake context.Context, conn *sql.Conn) (*sql.Tx, error) {
	limit := c.quickLimit()
	silent := time.AfterFunc(limit, func() { end(noAnswer(limit)) })
	stop := context.AfterFunc(intake, func() { end(context.Cause(intake)) })
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	silent.Stop()
	stop()
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return tx, err
}

// rollback ends a batch's transaction that was not committed. end ends the
// context of that if there is no answer.
func (c *consumerLoop) rollback(tx *sql.Tx, end context.CancelCauseFunc) {
	limit := c.w.limits.quick
	silent := time.AfterFunc(limit, func() { end(noAnswer(limit)) })
	defer silent.Stop()
	_ = tx.Rollback() // a no-op after the commit
}
