package worker

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/store"
)

// sentence is what becomes of a consumer, or of an event, that has failed
// MaxConsecutiveFailures times.
type sentence struct {
	policy   FailurePolicy
	position int64 // of the event
	attempts int
	err      error
	revision int64 // of the progress that it was passed on: another sets it aside
}

// failed decides what a handler's failure leads to. A batch of several events
// is narrowed down at once; the event that fails is tried again, with pauses.
func (c *consumerLoop) failed(ctx context.Context, b *batchError) (pause time.Duration, fatal error) {
	c.failures++
	alone := len(b.events) <= 1
	if alone && len(b.events) == 1 {
		b.at = &b.events[0]
	}
	e := c.consumerError(b.result)
	c.status.failed(e, c.failures)
	c.suspect = c.suspect.failed(b.events, indexOf(b.events, b.at))
	exhausted := c.failures >= c.w.cfg.MaxConsecutiveFailures
	switch policy := c.w.cfg.FailurePolicy; {
	case exhausted && (policy == FailStop || b.at == nil && alone):
		e.Err = errors.Join(ErrConsecutiveFailures, b.err)
		return 0, e
	case exhausted && alone:
		c.sentence = &sentence{policy, e.Position, c.failures, e, b.revision}
		c.w.cfg.Logger.Error(ctx, "consumer failed too often in a row", "consumer", c.unit.name, "policy", policy, "error", e)
		return 0, nil
	case alone:
		pause = backoff.Delay(c.failures, c.w.cfg.PollInterval, c.w.cfg.MaxPollInterval, rand.Float64())
	}
	c.w.cfg.Logger.Error(ctx, "consumer failed, will retry", "consumer", c.unit.name, "failures", c.failures, "error", e)
	tell(c.w.cfg.Observer.Retrying, Retry{Consumer: c.unit.name, InARow: c.failures, Pause: pause, Err: e, ByHandler: true})
	return pause, nil
}

func indexOf(events []store.PersistedEvent, at *store.PersistedEvent) int {
	if at == nil {
		return -1
	}
	return slices.IndexFunc(events, func(e store.PersistedEvent) bool { return e.GlobalPosition == at.GlobalPosition })
}

func (c *consumerLoop) consumerError(r result) *ConsumerError {
	e := &ConsumerError{Consumer: c.unit.name, Failures: c.failures, Err: r.err}
	if r.at != nil {
		e.Position, e.EventID, e.Type = r.at.GlobalPosition, r.at.EventID, r.at.EventType
	}
	return e
}

// pause carries out a sentence: nobody runs the consumer until an operator
// resumes it.
func (c *consumerLoop) pause(ctx context.Context, conn *sql.Conn) (did, error) {
	reason := text(c.sentence.err)
	paused, err := c.w.checkpoints.Pause(ctx, conn, c.unit.name, c.progress, reason)
	if err != nil {
		return nothing, err
	}
	if paused {
		c.w.cfg.Logger.Error(ctx, "consumer paused", "consumer", c.unit.name, "reason", reason)
		tell(c.w.cfg.Observer.ConsumerPaused, ConsumerInfo{c.unit.name, reason})
		c.attempt, c.failures, c.conflicts, c.suspect = 1, 0, 0, isolation{}
	}
	c.sentence = nil
	c.forget()
	return reload, nil
}

// Pause keeps everybody from running a consumer, if its progress is still what
// was loaded and it is assigned to this worker.
func (c checkpoints) Pause(ctx context.Context, q store.Querier, unit string, from *progress, reason string) (ok bool, err error) {
	result, err := q.ExecContext(ctx, c.pause, unit, from.revision, "worker "+c.worker.String(), reason)
	if err != nil {
		return false, fmt.Errorf("worker: pause consumer %q: %w", unit, err)
	}
	n, err := result.RowsAffected()
	return n > 0, err
}
