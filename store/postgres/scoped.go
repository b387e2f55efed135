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
// events of each of these types above r.After cost, or all of them if they are fewer,
// however many there are of other types. Of many types it costs what the next events of all
// types cost, if these are enough.
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
	page, found, err := s.readNear(ctx, q, r, types)
	if err == nil && !found {
		text, asked := s.sql.scoped, textArray(types)
		if len(types) == 1 {
			text, asked = s.sql.scopedOne, types[0]
		}
		page, err = s.readScoped(ctx, q, r, text, asked)
	}
	if err != nil {
		return store.ScopedPage{}, fmt.Errorf("storepostgres: read the events of %s of types %s in (%d, %d]: %w", s.events, errtext.Value(strings.Join(r.Types, ", ")), r.After, r.UpTo, err)
	}
	return page, nil
}

const (
	// manyTypes is from how many types on their events are looked for among all first.
	manyTypes = 8
	// nearAtOnce is how many positions for each type cost less than a look into the index for
	// the type, whatever is found there.
	nearAtOnce = 4
	// nearAtMost is how many positions for each type cost less than what the index has of the
	// types, if a page is found there.
	nearAtMost = 16
	// sparseReads is how many reads do without, after one that did not find a page there.
	sparseReads = 64
)

// readNear reads the events of many types among all events near r.After. found is false if that
// is no page: then the index has to tell.
func (s *Store) readNear(ctx context.Context, q store.Querier, r store.ScopedRange, types []string) (page store.ScopedPage, found bool, err error) {
	n, positions := int64(len(types)), r.UpTo-r.After
	switch {
	case n < manyTypes:
		return page, false, nil
	case positions > nearAtOnce*n && s.sparse.Load() > 0: // only then: it must not wrap
		s.sparse.Add(-1)
		return page, false, nil
	}
	near := r
	near.UpTo = r.After + min(positions, nearAtMost*n)
	page, err = s.readScoped(ctx, q, near, s.sql.scopedNear, textArray(types))
	if found = near.UpTo == r.UpTo || len(page.Events) == r.Limit || page.Through < near.UpTo; !found {
		s.sparse.Store(sparseReads)
	}
	return page, found, err
}

// readScoped reads a page by one of the scoped statements.
func (s *Store) readScoped(ctx context.Context, q store.Querier, r store.ScopedRange, text scopedSQLs, types any) (page store.ScopedPage, err error) {
	var more bool
	if r.MaxBytes > 0 {
		page.Events, more, err = s.querySized(ctx, q, r.Limit, r.MaxBytes, text.sized, r.After, r.UpTo, types, r.Limit)
	} else {
		page.Events, err = s.query(ctx, q, r.Limit, text.plain, r.After, r.UpTo, types, r.Limit)
		more = len(page.Events) == r.Limit
	}
	if page.Through = r.UpTo; more && err == nil {
		page.Through = page.Events[len(page.Events)-1].GlobalPosition
	}
	return page, err
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
