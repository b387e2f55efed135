package consume

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/pgfrontier/worker/internal/incarnation"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/observe"
)

// restartedError stops a consumer whose checkpoint may belong to a log that began
// again: the events up to the checkpoint would be taken for handled.
type restartedError struct {
	unit           string
	position, last int64
}

func (e restartedError) Error() string {
	const reset = "reset the consumer to where it is to go on from (0 for all events) and resume it (package ops)"
	if e.position > e.last {
		return fmt.Sprintf("worker: consumer %q is at position %d, but the log's sequence has issued %d at most: positions up to there come again and would not be handled; %s", e.unit, e.position, e.last, reset)
	}
	return fmt.Sprintf("worker: consumer %[1]q is at position %[2]d, but the events table and its sequence have other files than before: if maintenance rewrote them (ALTER TABLE, VACUUM FULL) and the events up to %[2]d are those that the consumer has handled, resume it without a reset, which would apply them again (pgfrontier resume); if the log was emptied since, and its sequence restarted, events up to there would not be handled: %[3]s", e.unit, e.position, reset)
}

// restarted returns a restartedError if the checkpoint that was just loaded may
// belong to the log as it was before.
func (c *consumerLoop) restarted(ctx context.Context, conn *sql.Conn) error {
	p := c.progress
	if p.Paused != nil || p.Token == "" {
		return nil // later
	}
	stop := p.Position > p.Last
	if !stop && p.Position > 0 && incarnation.LogRestarted(c.unit.log, p.Token) {
		same, err := c.sameLog(ctx, conn)
		if err != nil {
			return err
		}
		stop = !same
	}
	if stop {
		return restartedError{c.unit.name, p.Position, p.Last}
	}
	if err := c.noteCheckpoint(ctx, conn); err != nil {
		return err
	}
	c.unit.log = p.Token
	return nil
}

// noteCheckpoint records the event at the checkpoint that was loaded: until the consumer has
// handled another one here, that shows whether a log is the same. Without one, maintenance that
// rewrites the log pauses the consumer.
func (c *consumerLoop) noteCheckpoint(ctx context.Context, conn *sql.Conn) error {
	at := c.progress.Position
	if c.unit.handled.position >= at {
		return nil
	}
	err := c.reading(ctx, c.pidOf(conn), func(ctx context.Context) error {
		is, found, err := c.reader.EventAt(ctx, c.w.db.Plans.Conn(conn), c.progress.Token, at)
		if found {
			c.unit.handled.position, c.unit.handled.is = at, is
		}
		return err
	})
	return optional(ctx, err)
}

// optional returns nil instead of an error of a read that nobody needs, if the event may be one
// that cannot be read, and that an operator has skipped. What is of the statement, as of a plan
// that has outlived the type of a column, is tried again.
func optional(ctx context.Context, err error) error {
	s := pgdriver.SQLState(err)
	if err != nil && ofEvents(ctx, err) && (s == "" || pgdriver.FaultOf(err) == pgdriver.FaultRow || strings.HasPrefix(s, "XX") || s == "58030") { // corrupted data, or a file that cannot be read
		return nil
	}
	return err
}

// sameLog reports whether the log is known to be the one that the consumer has
// handled up to its checkpoint. What rewrites table and sequence gives both other
// files, as TRUNCATE ... RESTART IDENTITY does, but keeps each event at its
// position.
func (c *consumerLoop) sameLog(ctx context.Context, conn *sql.Conn) (same bool, err error) {
	if c.unit.handled.position == 0 {
		return false, nil
	}
	err = c.reading(ctx, c.pidOf(conn), func(ctx context.Context) (err error) {
		same, err = c.reader.IsLast(ctx, c.w.db.Plans.Conn(conn), c.progress.Token, c.unit.handled.position, c.unit.handled.is, c.progress.Position, c.w.cfg.BatchSize)
		return err
	})
	return same, optional(ctx, err)
}

// noteHandled records the last event of a committed batch, if it is the new one.
func (c *consumerLoop) noteHandled(w *work) {
	if w.last.position > w.from.Position && w.retried == nil {
		c.unit.handled.position, c.unit.handled.is = w.last.position, w.last.is
	}
}

// stopRestarted pauses a consumer, so that no worker passes over new events when
// the sequence has caught up. Who resumes it has seen why.
func (c *consumerLoop) stopRestarted(ctx context.Context, conn *sql.Conn, why error) result {
	paused := false
	err := c.quickly(ctx, func(ctx context.Context) (err error) {
		paused, err = c.w.checkpoints.Pause(ctx, conn, c.unit.name, c.progress, c.w.text(why))
		return err
	})
	if err != nil {
		return result{outcome: disturbed, err: err}
	}
	if paused {
		c.unit.log = c.progress.Token
		c.unit.handled.position = 0 // of the log before, perhaps
		c.status.disturbed(why)
		c.w.observers.Notify(observe.ConsumerPaused{Consumer: c.unit.name, Reason: why.Error()})
	}
	return result{outcome: overtaken}
}
