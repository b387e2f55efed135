package worker

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/reader"
	"github.com/pgfrontier/worker/store"
)

// sortOut takes those events from a page that go to the dead letters: the one
// under sentence, and all of an aggregate that has some there already. Which
// aggregates have some is asked after the progress was loaded: if that changes
// before the guard, the guard refuses.
func (c *consumerLoop) sortOut(ctx context.Context, q store.Querier, p *page) error {
	guilty := int64(0)
	if c.sentence != nil {
		guilty = c.sentence.position
	}
	if guilty == 0 && c.progress.DeadLetters == 0 {
		return nil
	}
	follows, err := c.w.checkpoints.HaveDeadLetters(ctx, q, c.unit.name, c.progress.Token, p.Events)
	if err != nil {
		return err
	}
	kept := p.Events[:0]
	for _, e := range p.Events {
		l := progress.DeadLetter{Aggregate: progress.AggregateOf(e), Position: e.GlobalPosition, EventID: e.EventID, EventType: e.EventType}
		switch {
		case e.GlobalPosition == guilty:
			l.Error, l.Attempts = errtext.Storable(c.sentence.err), c.sentence.attempts
		case !follows[l.Aggregate]:
			kept = append(kept, e)
			continue
		}
		if !follows[l.Aggregate] {
			follows[l.Aggregate] = true
			p.joined++
		}
		p.letters = append(p.letters, l)
	}
	p.Events = kept
	return nil
}

// lettersTurn reports whether a dead letter is tried before anything new. They
// take turns, so that neither waits for more than one of the other.
func (c *consumerLoop) lettersTurn() bool {
	return c.progress != nil && c.progress.Retry && !c.triedLetter
}

// retryLetter tries a dead letter again, the first of its aggregate. If it
// fails it stays, and all that follow it.
func (c *consumerLoop) retryLetter(ctx, intake context.Context, conn *sql.Conn, v *frontier.Value) (did, error) {
	if len(c.progress.Retries) == 0 {
		err := c.quickly(intake, func(ctx context.Context) (err error) {
			c.progress.Retries, err = c.w.checkpoints.NextRetries(ctx, conn, c.unit.name, c.progress.Token)
			return err
		})
		if err != nil {
			return nothing, err
		}
		if len(c.progress.Retries) == 0 {
			c.forget()
			return reload, nil
		}
	}
	r := c.progress.Retries[0]
	var events []store.PersistedEvent
	pid := c.w.sessionOf(conn)
	err := c.reading(intake, func() int64 { return pid }, func(ctx context.Context) (err error) {
		events, err = c.w.bound.At(v.Token).ReadEvents(ctx, conn, r.Position-1, 1)
		return err
	})
	if err != nil {
		return nothing, fmt.Errorf("worker: read a dead letter of consumer %q: %w", c.unit.name, err)
	}
	at := c.progress.Position
	p := page{Page: reader.Page{Look: frontier.Page{Checkpoint: at, Through: at}}, retried: &r, under: v}
	switch {
	case c.refused != nil && c.refused.Position == r.Position:
		r.Err = c.refused.Err
	case len(events) == 1 && events[0].GlobalPosition == r.Position:
		p.Events = events
	default:
		r.Err = fmt.Errorf("there is no event at position %d any more", r.Position)
	}
	c.refused = nil
	a := progress.Advance{To: at, Head: c.w.visible(v), Token: v.Token}
	return c.settle(c.runBatch(ctx, intake, conn, p, a), p, a)
}

// refuse takes note that a dead letter has failed again. That is written down
// next, on a connection that is sound.
func (c *consumerLoop) refuse(b *batchError) {
	c.w.observer.letterFailed(c.unit.name, b)
	c.refused = &progress.Retry{Position: b.retried.Position, Err: b.err}
	c.again.reset()
	c.w.troubles.end(c.aboutBatch(TroubleBatch, b.retried), time.Now()) // it is not tried any more
}

// settleLetters takes into account what a committed batch did to the dead
// letters.
func (c *consumerLoop) settleLetters(p page) {
	switch {
	case len(p.letters) > 0:
		c.progress.DeadLetters = min(c.progress.DeadLetters+p.joined, progress.DeadLettersCounted)
		c.status.loaded(c.progress)
	case p.retried == nil:
	case p.retried.Err == nil && len(c.progress.Retries) > 1:
		c.progress.Retries = c.progress.Retries[1:]
	default:
		c.forget() // it is not known which letters are left, or still to be tried
	}
}

// writeLetters writes what a batch does to the dead letters.
func (c *consumerLoop) writeLetters(ctx context.Context, tx *sql.Tx, p page) error {
	if len(p.letters) > 0 {
		return c.w.checkpoints.AddDeadLetters(ctx, tx, c.unit.name, p.letters)
	}
	if p.retried != nil {
		return c.w.checkpoints.Retried(ctx, tx, c.unit.name, p.retried)
	}
	return nil
}
