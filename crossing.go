package worker

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/reader"
	"github.com/pgfrontier/worker/store"
)

// errTooManyOpen makes a consumer wait.
type errTooManyOpen struct {
	unit string
	max  int
	at   int64
}

func (e errTooManyOpen) Error() string {
	return fmt.Sprintf("worker: consumer %q waits at position %d: it has passed %d ranges of positions in doubt, as many as WithMaxOpenRanges allows; end the transactions that stay open (Status lists them), or raise the option", e.unit, e.at, e.max)
}

// page is what the consumer goes over in one batch.
type page struct {
	reader.Page
	letters []letter // to be put among the dead letters
	joined  int      // aggregates that had none before
	retried *retry   // the dead letter that Events consists of; nil: it does not
}

// cross decides what going over the page means. It shortens the page where
// going on would open more ranges than maxOpen.
func (p *page) cross(v *frontier.Value, open []openRange, maxOpen int) (a advance, blocked bool) {
	crossing, blocked := p.Cross(v, maxOpen)
	a = advance{to: crossing.To, token: v.Token, under: v}
	void := crossing.Void
	if p.Void.Count > 0 {
		void = p.Void
	}
	if void.Count > 0 {
		a.marks = append(a.marks, mark{Range: void.Range, Missing: void.Count, State: SkipVoid})
	}
	a.mark(SkipOpen, crossing.Opened, nil)
	for _, closed := range crossing.Closed {
		o := open[closed.Index]
		a.gone = append(a.gone, o.ID)
		a.mark(SkipLate, closed.Late, &o)
		a.mark(SkipVoid, closed.Void, &o)
		a.mark(SkipOpen, closed.Remains, &o)
	}
	return a, blocked
}

// lookAround reads what is new for the consumer, and which of its open
// positions have appeared, under v.
func (c *consumerLoop) lookAround(ctx context.Context, conn *sql.Conn, v *frontier.Value) (page, error) {
	s := c.tally.suspect
	from := reader.Place{Position: c.progress.position, Limit: s.size(c.w.cfg.BatchSize), Bound: s.upTo(reader.Unbounded)}
	for _, o := range c.progress.open {
		from.Open = append(from.Open, o.Range)
	}
	p, err := c.reader.Read(ctx, conn, v, from)
	return page{Page: p}, err
}

// takeReadAhead returns the next page if it was read ahead, and the Value that
// it was read under. Pages that do not follow the progress are forgotten.
func (c *consumerLoop) takeReadAhead(intake context.Context) (page, *frontier.Value) {
	if c.progress == nil || len(c.progress.open) > 0 {
		c.reader.Drop()
		return page{}, nil
	}
	p, v := c.reader.Take(intake, c.progress.position, c.progress.token)
	return page{Page: p}, v
}

// visible returns the highest visible position, as far as this worker has seen.
// WithStaleGapHarborLag keeps v.Safe below it.
func (w *Worker) visible(v *frontier.Value) int64 {
	head, _ := w.frontier.Head()
	return max(head, v.Safe)
}

func (a *advance) mark(state SkipState, spans []store.Range, from *openRange) {
	for _, s := range spans {
		m := mark{Range: s, Missing: s.Count(), State: state}
		if from != nil {
			m.Seen = &from.Seen
		}
		a.marks = append(a.marks, m)
	}
}

// movesOpen reports that the consumer's open ranges change.
func (a *advance) movesOpen() bool {
	if len(a.gone) > 0 {
		return true
	}
	for _, m := range a.marks {
		if m.State == SkipOpen {
			return true
		}
	}
	return false
}

// empty reports that nothing would change.
func (a *advance) empty(checkpoint int64) bool {
	return a.to == checkpoint && len(a.marks) == 0
}
