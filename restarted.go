package worker

import (
	"context"
	"database/sql"
	"fmt"
)

// restartedError stops a consumer whose checkpoint is above every position that
// was issued: the events that come next would be taken for handled.
type restartedError struct {
	unit           string
	position, last int64
}

func (e restartedError) Error() string {
	return fmt.Sprintf("worker: consumer %q is at position %d, but the log's sequence has issued %d at most: the log was truncated, or its sequence set back; reset the consumer to where it is to go on from (0 for all events) and resume it (package ops), or set the sequence to the highest position that was issued", e.unit, e.position, e.last)
}

// stopAbove pauses a consumer that is above the log's sequence, so that no
// worker passes over new events when the sequence has caught up.
func (c *consumerLoop) stopAbove(ctx context.Context, conn *sql.Conn) (did, error) {
	why := restartedError{c.unit.name, c.progress.position, c.progress.last}
	paused := false
	err := c.quickly(ctx, func(ctx context.Context) (err error) {
		paused, err = c.w.checkpoints.Pause(ctx, conn, c.unit.name, c.progress, text(why))
		return err
	})
	if err != nil {
		return nothing, err
	}
	if paused {
		c.status.disturbed(why)
		c.w.cfg.Logger.Error(ctx, "consumer paused", "consumer", c.unit.name, "error", why)
		tell(c.w.cfg.Observer.ConsumerPaused, ConsumerInfo{c.unit.name, why.Error()})
	}
	c.forget()
	return reload, nil
}
