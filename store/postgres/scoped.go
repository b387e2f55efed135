package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/store"
)

// ReadScoped returns at most r.Limit events of r.Types with r.After < position
// <= r.UpTo, and how far they reach, as one snapshot shows it.
//
// It needs the index (aggregate_type, global_position). It costs what r.Limit
// events of these types above r.After cost, or all of them if they are fewer,
// however many there are of other types.
//
// r must name a type. After must not be negative nor above UpTo. Limit must be
// above 0.
func (s *Store) ReadScoped(ctx context.Context, q store.Querier, r store.ScopedRange) (store.ScopedPage, error) {
	if err := s.canRead(q); err != nil {
		return store.ScopedPage{}, err
	}
	types, err := scopedTypes(r)
	if err != nil {
		return store.ScopedPage{}, fmt.Errorf("storepostgres: ReadScoped: %w", err)
	}
	text, bounded, asked := s.sql.scoped, s.sql.scopedSized, textArray(types)
	if len(types) == 1 {
		text, bounded, asked = s.sql.scopedOne, s.sql.scopedOneSized, types[0]
	}
	var events []store.PersistedEvent
	var more bool
	if r.MaxBytes > 0 {
		events, more, err = s.querySized(ctx, q, r.Limit, r.MaxBytes, bounded, r.After, r.UpTo, asked, r.Limit)
	} else {
		events, err = s.query(ctx, q, r.Limit, text, r.After, r.UpTo, asked, r.Limit)
		more = len(events) == r.Limit
	}
	if err != nil {
		return store.ScopedPage{}, fmt.Errorf("storepostgres: read the events of %s of types %s in (%d, %d]: %w", s.events, errtext.Value(strings.Join(r.Types, ", ")), r.After, r.UpTo, err)
	}
	page := store.ScopedPage{Events: events, Through: r.UpTo}
	if more {
		page.Through = events[len(events)-1].GlobalPosition
	}
	return page, nil
}

// CountMissing returns which positions in (after, through] have no event, as
// one snapshot shows it. Its cost grows with the events in the range, some
// 0.05 to 0.5 seconds a million: bound the range.
func (s *Store) CountMissing(ctx context.Context, q store.Querier, after, through int64) (store.Missing, error) {
	if err := s.canRead(q); err != nil {
		return store.Missing{}, err
	}
	if after < 0 || through < after {
		return store.Missing{}, fmt.Errorf("storepostgres: CountMissing: (%d, %d] is no range of positions", after, through)
	}
	var m store.Missing
	if err := q.QueryRowContext(ctx, s.sql.missing, s.args(after, through)...).Scan(&m.Count, &m.First, &m.Last); err != nil {
		return store.Missing{}, fmt.Errorf("storepostgres: count what is missing of %s in (%d, %d]: %w", s.events, after, through, s.explain(err))
	}
	if m.Count == 0 {
		return store.Missing{}, nil
	}
	return m, nil
}

// scopedTypes checks r and returns its types, each once.
func scopedTypes(r store.ScopedRange) ([]string, error) {
	switch {
	case r.Limit <= 0:
		return nil, fmt.Errorf("the Limit is %d: it must be above 0", r.Limit)
	case r.After < 0:
		return nil, fmt.Errorf("the After is %d: positions begin at 1, use 0 for the beginning", r.After)
	case r.UpTo < r.After:
		return nil, fmt.Errorf("the UpTo %d is below After %d", r.UpTo, r.After)
	case len(r.Types) == 0:
		return nil, errors.New("the list Types is empty: name the aggregate types, or use ReadEvents for all of them")
	}
	types := slices.Compact(slices.Sorted(slices.Values(r.Types)))
	for _, t := range types {
		if err := checkText("Types", t); err != nil {
			return nil, err
		}
	}
	return types, nil
}
