package worker

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/progress"
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

// failed carries out what a handler's failure leads to.
func (c *consumerLoop) failed(ctx context.Context, b *batchError, v decision) (pause time.Duration, fatal error) {
	if len(b.events) == 1 {
		b.at = &b.events[0]
	}
	e := c.consumerError(b.result, v)
	policy := c.w.cfg.FailurePolicy
	if b.retried != nil && b.retried.Err == nil {
		c.refuse(b)
		return 0, nil
	}
	c.status.failed(e, v.inARow)
	switch {
	case v.exhausted && (policy == FailStop || b.at == nil):
		tell(c.w.observer.ConsumerFailed, ConsumerFailure{c.unit.name, FailStop, e})
		last := *e // e itself others read by now
		last.Err = errtext.Join(ErrConsecutiveFailures, b.err)
		return 0, &last
	case v.exhausted:
		c.sentence = &sentence{policy, e.Position, v.tries, e, b.revision}
		tell(c.w.observer.ConsumerFailed, ConsumerFailure{c.unit.name, policy, e})
		return 0, nil
	}
	c.w.troubled(c.aboutBatch(TroubleBatch, b.retried), e)
	tell(c.w.observer.Retrying, Retry{Consumer: c.unit.name, Trouble: TroubleBatch, InARow: v.inARow, Pause: v.pause, Err: e, ByHandler: true})
	return v.pause, nil
}

func indexOf(events []store.PersistedEvent, at *store.PersistedEvent) int {
	if at == nil {
		return -1
	}
	return slices.IndexFunc(events, func(e store.PersistedEvent) bool { return e.GlobalPosition == at.GlobalPosition })
}

func (c *consumerLoop) consumerError(r result, v decision) *ConsumerError {
	e := &ConsumerError{Consumer: c.unit.name, Failures: cmp.Or(v.tries, v.inARow), Err: r.err}
	if r.at != nil {
		e.Position, e.EventID, e.EventType = r.at.GlobalPosition, r.at.EventID, r.at.EventType
	}
	return e
}

// pause carries out a sentence: nobody runs the consumer until an operator
// resumes it.
func (c *consumerLoop) pause(ctx context.Context, conn *sql.Conn) (did, error) {
	paused := false
	err := c.quickly(ctx, func(ctx context.Context) (err error) {
		paused, err = c.w.checkpoints.Pause(ctx, conn, c.unit.name, c.progress, errtext.Storable(c.sentence.err))
		return err
	})
	if err != nil {
		return nothing, err // it may have happened: load tells
	}
	if paused {
		c.announcePause()
		c.tally.reset()
	}
	c.sentence = nil
	c.forget()
	return reload, nil
}

// pausedAsSentenced reports whether the pause that was loaded is the one of
// the sentence.
func (c *consumerLoop) pausedAsSentenced() bool {
	p := c.progress.Paused
	return p != nil && p.By == progress.By(c.w.id) && p.Reason == errtext.Storable(c.sentence.err)
}

func (c *consumerLoop) announcePause() {
	reason := errtext.Storable(c.sentence.err)
	c.w.troubled(c.about(TroublePaused), c.sentence.err)
	tell(c.w.observer.ConsumerPaused, ConsumerInfo{c.unit.name, reason})
}
