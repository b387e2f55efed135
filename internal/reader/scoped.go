package reader

import (
	"context"
	"fmt"
	"slices"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/store"
)

// scopedStretch is how many positions a scoped consumer crosses in one step at
// most: a fraction of a second's counting.
const scopedStretch = 1 << 20

// scopedSight is how many events of a scoped consumer are read ahead in one
// statement, if a batch has not more: all that lies between them is counted
// before the first is handled.
const scopedSight = 1_000

// countable is the part of what lies ahead in which the database counts what is
// missing. It counts every position, so the part is bounded, to keep the
// statement short; and it finds only a sum, so not into doubts.
func countable(v *frontier.Value, ahead span) span {
	ahead.upTo = min(ahead.upTo, ahead.after+scopedStretch)
	if doubts := v.InDoubt(ahead.after, ahead.upTo); len(doubts) > 0 {
		ahead.upTo = doubts[0].First - 1
	}
	return ahead
}

// lookAtSome reads what the consumer wants of a countable part of what lies
// ahead up to a position.
func (r *view) lookAtSome(ctx context.Context, q store.Querier, v *frontier.Value, within span, upTo int64, limit, n, maxBytes int) (pages []Page, err error) {
	n = min(n, max(1, scopedSight/limit))
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
		pages = append(pages, Page{Events: events, Look: frontier.Page{Checkpoint: after, Through: through}, Full: through < v.Safe})
		after = through
	}
	if after < found.Through || len(pages) == 0 {
		pages = append(pages, Page{Look: frontier.Page{Checkpoint: after, Through: found.Through}, Full: found.Through < v.Safe})
	}
	return pages, nil
}

// acrossHole returns how far a page reaches that ends with a whole stretch. If
// no event of any type stands behind its last one in the stretch, the page goes
// on to the next event, upTo at most, however far the sequence has jumped: what
// is missing in between costs nothing to count.
func (r *view) acrossHole(ctx context.Context, q store.Querier, v *frontier.Value, found store.ScopedPage, upTo int64) (through int64, err error) {
	last := found.Through - scopedStretch
	if n := len(found.Events); n > 0 {
		last = found.Events[n-1].GlobalPosition
	}
	next, err := r.at(v).ReadEvents(ctx, q, last, 1)
	if err != nil {
		return 0, fmt.Errorf("worker: read the event behind a gap: %w", err)
	}
	if len(next) > 0 {
		upTo = min(upTo, next[0].GlobalPosition-1)
	}
	if doubts := v.InDoubt(last, upTo); len(doubts) > 0 {
		upTo = doubts[0].First - 1
	}
	return max(upTo, found.Through), nil
}

// Recount counts what a page misses up to a position, if the page has a sum that reaches
// further: it is to end there. token is the incarnation that must answer.
func (r *Reader) Recount(ctx context.Context, q store.Querier, token string, p *Page, through int64) (err error) {
	if p.Void.Count == 0 || through < p.Void.First || through >= p.Void.Last {
		return nil
	}
	if p.Void, err = r.log.At(token).(store.ScopedReader).CountMissing(ctx, q, p.Look.Checkpoint, through); err != nil {
		return fmt.Errorf("worker: count missing positions: %w", err)
	}
	return nil
}

// countMissing sums up what each of the pages misses, which follow one another.
// It counts them all at once, and again only those in which it may be. That may
// be another snapshot than the pages': whatever is missing in any that is later
// than v is void.
func (r *view) countMissing(ctx context.Context, q store.Querier, v *frontier.Value, pages []Page) error {
	log := r.at(v).(store.ScopedReader)
	all, err := log.CountMissing(ctx, q, pages[0].Look.Checkpoint, pages[len(pages)-1].Look.Through)
	for i := 0; i < len(pages) && err == nil; i++ {
		p := &pages[i]
		after, through := p.Look.Checkpoint, p.Look.Through
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
