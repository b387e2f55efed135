package worker

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/reader"
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
	letters []progress.DeadLetter // to be put among the dead letters
	joined  int                   // aggregates that had none before
	under   *frontier.Value       // that going over it was decided under
	retried *progress.Retry       // the dead letter that Events consists of; nil: it does not
}

// cross decides what going over the page means. It shortens the page where
// going on would open more ranges than maxOpen.
func (p *page) cross(v *frontier.Value, open []progress.OpenRange, maxOpen int) (a progress.Advance, blocked bool) {
	crossing, blocked := p.Cross(v, maxOpen)
	p.under = v
	a = progress.Advance{To: crossing.To, Token: v.Token}
	void := crossing.Void
	if p.Void.Count > 0 {
		void = p.Void
	}
	if void.Count > 0 {
		a.Marks = append(a.Marks, progress.Mark{Range: void.Range, Missing: void.Count, State: progress.Void})
	}
	a.Mark(progress.Open, crossing.Opened, nil)
	for _, closed := range crossing.Closed {
		o := open[closed.Index]
		a.Gone = append(a.Gone, o.ID)
		a.Mark(progress.Late, closed.Late, &o)
		a.Mark(progress.Void, closed.Void, &o)
		a.Mark(progress.Open, closed.Remains, &o)
	}
	return a, blocked
}

// lookAround reads what is new for the consumer, and which of its open
// positions have appeared, under v.
func (c *consumerLoop) lookAround(ctx context.Context, conn *sql.Conn, v *frontier.Value) (page, error) {
	s := c.tally.suspect
	from := reader.Place{Position: c.progress.Position, Limit: s.size(c.w.cfg.BatchSize), Bound: s.upTo(reader.Unbounded)}
	for _, o := range c.progress.Open {
		from.Open = append(from.Open, o.Range)
	}
	p, err := c.reader.Read(ctx, conn, v, from)
	return page{Page: p}, err
}

// takeReadAhead returns the next page if it was read ahead, and the Value that
// it was read under. Pages that do not follow the progress are forgotten.
func (c *consumerLoop) takeReadAhead(intake context.Context) (page, *frontier.Value) {
	if c.progress == nil || len(c.progress.Open) > 0 {
		c.reader.Drop()
		return page{}, nil
	}
	p, v := c.reader.Take(intake, c.progress.Position, c.progress.Token)
	return page{Page: p}, v
}

// visible returns the highest visible position, as far as this worker has seen.
// WithStaleGapHarborLag keeps v.Safe below it.
func (w *Worker) visible(v *frontier.Value) int64 {
	head, _ := w.frontier.Head()
	return max(head, v.Safe)
}
