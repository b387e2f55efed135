package worker

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/incarnation"
)

// restartedError stops a consumer whose checkpoint belongs to a log that began
// again: the events up to it came again, and would be taken for handled.
type restartedError struct {
	unit           string
	position, last int64
}

func (e restartedError) Error() string {
	issued := fmt.Sprintf("the log's sequence has issued %d at most", e.last)
	if e.position <= e.last {
		issued = "the log was emptied since, and its sequence restarted"
	}
	return fmt.Sprintf("worker: consumer %q is at position %d, but %s: positions up to there come again and would not be handled; reset the consumer to where it is to go on from (0 for all events) and resume it (package ops)", e.unit, e.position, issued)
}

// restarted returns a restartedError if the checkpoint that was just loaded
// belongs to the log as it was before.
func (c *consumerLoop) restarted() error {
	p := c.progress
	switch {
	case p.Paused != nil || p.Token == "":
		return nil // later
	case p.Position > p.Last, p.Position > 0 && incarnation.LogRestarted(c.unit.log, p.Token):
		return restartedError{c.unit.name, p.Position, p.Last}
	}
	c.unit.log = p.Token
	return nil
}

// stopRestarted pauses a consumer, so that no worker passes over new events when
// the sequence has caught up. Who resumes it has seen why.
func (c *consumerLoop) stopRestarted(ctx context.Context, conn *sql.Conn, why error) result {
	paused, err := c.w.checkpoints.Pause(ctx, conn, c.unit.name, c.progress, errtext.Storable(why))
	if err != nil {
		return result{outcome: disturbed, err: err}
	}
	if paused {
		c.unit.log = c.progress.Token
		c.status.disturbed(why)
		tell(c.w.observer.ConsumerPaused, ConsumerInfo{c.unit.name, why.Error()})
	}
	return result{outcome: overtaken}
}
