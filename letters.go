package worker

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/store"
)

// aggregate is whose events follow each other into the dead letters.
type aggregate struct {
	Type string `json:"type"`
	ID   string `json:"id"`
}

// letter is an event on its way to the dead letters. Its text is empty if it
// only follows an earlier one of its aggregate.
type letter struct {
	aggregate
	Position  int64     `json:"position"`
	EventID   uuid.UUID `json:"event_id"`
	EventType string    `json:"event_type"`
	Error     string    `json:"error,omitempty"`
	Attempts  int       `json:"attempts"`
}

// retry is a dead letter that an operator wants to be tried again.
type retry struct {
	position int64
	attempts int
	err      error // why it could not be handled this time; nil: it was
}

// sortOut takes those events from a page that go to the dead letters: the one
// under sentence, and all of an aggregate that has some there already.
func (c *consumerLoop) sortOut(p *page) {
	guilty := int64(0)
	if c.sentence != nil {
		guilty = c.sentence.position
	}
	if guilty == 0 && len(c.progress.letters) == 0 {
		return
	}
	kept := p.events[:0]
	for _, e := range p.events {
		l := letter{aggregate: aggregate{e.AggregateType, e.AggregateID}, Position: e.GlobalPosition, EventID: e.EventID, EventType: e.EventType}
		_, follows := c.progress.letters[l.aggregate]
		switch {
		case e.GlobalPosition == guilty:
			l.Error, l.Attempts = text(c.sentence.err), c.sentence.attempts
		case !follows:
			kept = append(kept, e)
			continue
		}
		p.letters = append(p.letters, l)
	}
	p.events = kept
}

// retryLetter tries a dead letter again, the first of its aggregate. If it
// fails it stays, and all that follow it.
func (c *consumerLoop) retryLetter(ctx, intake context.Context, conn *sql.Conn, v *frontier.Value) (did, error) {
	r, err := c.w.checkpoints.NextRetry(intake, conn, c.unit.name)
	if err != nil || r == nil {
		c.forget()
		return reload, err
	}
	events, err := c.log(v).ReadEvents(intake, conn, r.position-1, 1)
	if err != nil {
		return nothing, fmt.Errorf("worker: read a dead letter of consumer %q: %w", c.unit.name, err)
	}
	at := c.progress.position
	p := page{look: frontier.Page{Checkpoint: at, Through: at}, retried: r}
	switch {
	case c.refused != nil && c.refused.position == r.position:
		r.err = c.refused.err
	case len(events) == 1 && events[0].GlobalPosition == r.position:
		p.events = events
	default:
		r.err = fmt.Errorf("there is no event at position %d any more", r.position)
	}
	c.refused = nil
	a := advance{to: at, head: v.Safe, token: v.Token}
	result := c.runBatch(ctx, intake, conn, p, a)
	if result.outcome == handlerFailed && r.err == nil {
		c.w.cfg.Logger.Error(intake, "dead letter failed again", "consumer", c.unit.name, "position", r.position, "error", result.err)
		c.refused = &retry{position: r.position, err: result.err}
		c.forget()
		return reload, nil // write it down, on a connection that is sound
	}
	defer c.forget() // there is one letter less, or one fewer to retry
	return c.settle(result, p, a)
}

// letters writes what a batch does to the dead letters.
func (c *consumerLoop) writeLetters(ctx context.Context, tx *sql.Tx, p page) error {
	if len(p.letters) > 0 {
		return c.w.checkpoints.Bury(ctx, tx, c.unit.name, p.letters)
	}
	if p.retried != nil {
		return c.w.checkpoints.Retried(ctx, tx, c.unit.name, p.retried)
	}
	return nil
}

// Bury adds dead letters. Where their aggregate is to be tried again, so are
// they.
func (c checkpoints) Bury(ctx context.Context, tx *sql.Tx, unit string, letters []letter) error {
	rows, err := json.Marshal(letters)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, c.bury, unit, string(rows)); err != nil {
		return fmt.Errorf("worker: write %d dead letters of consumer %q: %w", len(letters), unit, err)
	}
	return nil
}

// NextRetry returns the first dead letter of the aggregates that are to be
// tried again, nil if there is none.
func (c checkpoints) NextRetry(ctx context.Context, q store.Querier, unit string) (*retry, error) {
	var r retry
	err := q.QueryRowContext(ctx, c.nextRetry, unit).Scan(&r.position, &r.attempts)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("worker: look for dead letters of consumer %q to retry: %w", unit, err)
	}
	return &r, nil
}

// Retried removes a dead letter that was handled, or keeps one that was not,
// with all that follow it.
func (c checkpoints) Retried(ctx context.Context, tx *sql.Tx, unit string, r *retry) (err error) {
	if r.err == nil {
		_, err = tx.ExecContext(ctx, c.unbury, unit, r.position)
	} else {
		_, err = tx.ExecContext(ctx, c.keepBuried, unit, r.position, text(r.err))
	}
	if err != nil {
		return fmt.Errorf("worker: write the dead letter of consumer %q at position %d: %w", unit, r.position, err)
	}
	return nil
}
