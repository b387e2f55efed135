package reader

import (
	"context"
	"fmt"
	"slices"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/store"
)

// scopedStretch is the maximum number of positions that a scoped consumer passes in one step.
// Counting them takes a fraction of a second.
const scopedStretch = 1 << 20

// scopedEventsAhead is the number of events that one statement reads ahead for a scoped
// consumer, unless a batch is larger. The positions between them are all counted before the
// first event is handled.
const scopedEventsAhead = 1_000

// countable returns the part of ahead in which the database counts the missing positions. It
// counts every position, so the part is bounded to keep the statement short. The count is only
// a sum, so the part ends before the first doubt.
func countable(v *frontier.Value, ahead span) span {
	ahead.upTo = min(ahead.upTo, ahead.after+scopedStretch)
	if doubts := v.InDoubt(ahead.after, ahead.upTo); len(doubts) > 0 {
		ahead.upTo = doubts[0].First - 1
	}
	return ahead
}

// readScoped reads the events that the consumer wants from a countable part of the positions
// up to upTo.
func (r *view) readScoped(ctx context.Context, q store.Querier, v *frontier.Value, within span, upTo int64, limit, n, maxBytes int) (pages []Page, err error) {
	n = min(n, max(1, scopedEventsAhead/limit))
	found, err := r.at(v).(store.ScopedReader).ReadScoped(ctx, q, store.ScopedRange{After: within.after, UpTo: within.upTo, Types: r.types, Limit: r.sized.Limit(limit * n), MaxBytes: maxBytes})
	if err != nil {
		return nil, fmt.Errorf("worker: read events: %w", err)
	}
	r.sized.Took(found.Events)
	if found.Through == within.after+scopedStretch {
		if found.Through, err = r.acrossHole(ctx, q, v, found, upTo); err != nil {
			return nil, err
		}
	}
	after := within.after
	for events := range slices.Chunk(found.Events, limit) {
		through := found.Through
		if len(events) == limit {
			through = events[limit-1].GlobalPosition
		}
		pages = append(pages, Page{Events: events, Positions: frontier.Page{Checkpoint: after, Through: through}, Full: through < v.Safe})
		after = through
	}
	if after < found.Through || len(pages) == 0 {
		pages = append(pages, Page{Positions: frontier.Page{Checkpoint: after, Through: found.Through}, Full: found.Through < v.Safe})
	}
	return pages, nil
}

// acrossHole returns the end of a page that ends with a whole stretch. If no event follows the
// last one in the stretch, the page extends to the next event, or to upTo. The length of the
// jump does not matter, because counting the missing positions of a jump costs nothing.
func (r *view) acrossHole(ctx context.Context, q store.Querier, v *frontier.Value, found store.ScopedPage, upTo int64) (through int64, err error) {
	last := found.Through - scopedStretch
	if n := len(found.Events); n > 0 {
		last = found.Events[n-1].GlobalPosition
	}
	next, err := r.at(v).ReadEvents(ctx, q, last, 1)
	if err != nil {
		return 0, fmt.Errorf("worker: read the event after a gap: %w", err)
	}
	if len(next) > 0 {
		upTo = min(upTo, next[0].GlobalPosition-1)
	}
	if doubts := v.InDoubt(last, upTo); len(doubts) > 0 {
		upTo = doubts[0].First - 1
	}
	return max(upTo, found.Through), nil
}

// countMissing counts the missing positions of each of the consecutive pages. It counts all
// pages together, and then only the pages that may have missing positions. The snapshot may
// differ from the pages' snapshot: a position that is missing in any snapshot later than v is
// void.
func (r *view) countMissing(ctx context.Context, q store.Querier, v *frontier.Value, pages []Page) error {
	log := r.at(v).(store.ScopedReader)
	all, err := log.CountMissing(ctx, q, pages[0].Positions.Checkpoint, pages[len(pages)-1].Positions.Through)
	for i := 0; i < len(pages) && err == nil; i++ {
		p := &pages[i]
		after, through := p.Positions.Checkpoint, p.Positions.Through
		switch {
		case all.Count == 0 || through < all.First || after >= all.Last:
		case after < all.First && through >= all.Last:
			p.Void = all
		default:
			p.Void, err = log.CountMissing(ctx, q, after, through)
		}
	}
	if err != nil {
		return fmt.Errorf("worker: count missing positions: %w", err)
	}
	return nil
}
