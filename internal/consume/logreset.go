package consume

import (
	"context"
	"database/sql"
	"strings"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/reader"
	"github.com/pgfrontier/worker/observe"
)

// logReader reads the log on the loop's connection. It implements [txcheck.LogReader].
type logReader struct {
	c    *consumerLoop
	conn *sql.Conn
}

// EventAt reads the event at a position, if that event can be read.
func (r logReader) EventAt(ctx context.Context, token string, position int64) (is reader.Fingerprint, found bool, err error) {
	err = r.c.w.reading(ctx, r.c.unit.name, r.c.w.pidOf(r.conn), func(ctx context.Context) (err error) {
		is, found, err = r.c.reader.EventAt(ctx, r.c.w.db.Plans.Conn(r.conn), token, position)
		return err
	})
	return is, found, optional(ctx, err)
}

// IsLast reports whether the event at a position is unchanged and is the unit's last event
// up to upTo. It returns false if an event cannot be read.
func (r logReader) IsLast(ctx context.Context, token string, position int64, is reader.Fingerprint, upTo int64) (last bool, err error) {
	err = r.c.w.reading(ctx, r.c.unit.name, r.c.w.pidOf(r.conn), func(ctx context.Context) (err error) {
		last, err = r.c.reader.IsLast(ctx, r.c.w.db.Plans.Conn(r.conn), token, position, is, upTo, r.c.w.cfg.BatchSize)
		return err
	})
	return last, optional(ctx, err)
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
		c.unit.log.Paused(c.progress.Token)
		c.status.setError(why)
		c.w.observers.Notify(observe.ConsumerPaused{Consumer: c.unit.name, Reason: why.Error()})
	}
	return result{outcome: overtaken}
}
