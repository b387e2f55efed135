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

// logResetError stops a consumer whose checkpoint may belong to the log before a reset.
// Otherwise the new events up to the checkpoint would count as handled.
type logResetError struct {
	unit           string
	position, last int64
}

func (e logResetError) Error() string {
	const reset = "reset the consumer to where it is to go on from (0 for all events) and resume it (package ops)"
	if e.position > e.last {
		return fmt.Sprintf("worker: consumer %q is at position %d, but the log's sequence has issued %d at most: positions up to there come again and would not be handled; %s", e.unit, e.position, e.last, reset)
	}
	return fmt.Sprintf("worker: consumer %[1]q is at position %[2]d, but the events table and its sequence have other files than before: if maintenance rewrote them (ALTER TABLE, VACUUM FULL) and the events up to %[2]d are those that the consumer has handled, resume it without a reset, which would apply them again (pgfrontier resume); if the log was emptied since, and its sequence restarted, events up to there would not be handled: %[3]s", e.unit, e.position, reset)
}

// checkLogReset returns a logResetError if the loaded checkpoint may belong to the log
// before a reset.
func (c *consumerLoop) checkLogReset(ctx context.Context, conn *sql.Conn) error {
	p := c.progress
	if p.Paused != nil || p.Token == "" {
		return nil // checked at a later load
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
		return logResetError{c.unit.name, p.Position, p.Last}
	}
	if err := c.recordCheckpoint(ctx, conn); err != nil {
		return err
	}
	c.unit.log = p.Token
	return nil
}

// recordCheckpoint records the event at the loaded checkpoint. It identifies the log until
// the consumer has handled another event in this worker. Without such an event, maintenance
// that rewrites the log would pause the consumer.
func (c *consumerLoop) recordCheckpoint(ctx context.Context, conn *sql.Conn) error {
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

// optional drops the error of an optional read if the error is due to the event. Such an
// event cannot be read, and an operator may have skipped it. An error of the statement is
// returned, and the read is tried again. An example is a plan that is older than a change
// of a column's type.
func optional(ctx context.Context, err error) error {
	s := pgdriver.SQLState(err)
	if err != nil && ofEvents(ctx, err) && (s == "" || pgdriver.FaultOf(err) == pgdriver.FaultRow || strings.HasPrefix(s, "XX") || s == "58030") { // corrupted data, or a file that cannot be read
		return nil
	}
	return err
}

// sameLog reports whether the log is known to contain the events that the consumer has
// handled up to its checkpoint. A rewrite gives the table and its sequence other files, and
// so does TRUNCATE ... RESTART IDENTITY. Only a rewrite keeps each event at its position.
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

// recordHandled records the last event of a committed batch if it is a new event.
func (c *consumerLoop) recordHandled(w *work) {
	if w.last.position > w.from.Position && w.retried == nil {
		c.unit.handled.position, c.unit.handled.is = w.last.position, w.last.is
	}
}

// pauseAfterLogReset pauses a consumer, so that no worker passes new events when the
// sequence has caught up. The operator who resumes the consumer has read the reason.
func (c *consumerLoop) pauseAfterLogReset(ctx context.Context, conn *sql.Conn, why error) result {
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
		c.unit.handled.position = 0 // the event may belong to the log before the reset
		c.status.setError(why)
		c.w.observers.Notify(observe.ConsumerPaused{Consumer: c.unit.name, Reason: why.Error()})
	}
	return result{outcome: overtaken}
}
