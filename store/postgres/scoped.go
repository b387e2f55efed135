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

// ReadScoped returns at most r.Limit events of r.Types with r.After < position <= r.UpTo, and
// how far they reach. The answer comes from one snapshot.
//
// ReadScoped needs the index (aggregate_type, global_position). It reads at most r.Limit events per
// type in r.Types. Events of other types cost nothing. For many types, it first reads the next
// events of all types. If these fill the page, it reads no more.
//
// r must name a type. After must not be negative nor above UpTo. Limit must be above 0.
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
	// manyTypes is the number of types from which on a read first scans the events of all types.
	manyTypes = 8
	// nearAtOnce is a number of positions for each type. A scan of so many positions costs less
	// than an index lookup for the type, whatever the scan finds.
	nearAtOnce = 4
	// nearAtMost is a number of positions for each type. A scan of so many positions costs less
	// than the index lookups if it finds a page.
	nearAtMost = 16
	// sparseReads is the number of reads without a scan after a scan that did not find a page.
	sparseReads = 64
)

// readNear reads the events of many types by a scan of all events near r.After. found is false
// if the scan did not fill a page. The caller then reads through the index.
func (s *Store) readNear(ctx context.Context, q store.Querier, r store.ScopedRange, types []string) (page store.ScopedPage, found bool, err error) {
	n, positions := int64(len(types)), r.UpTo-r.After
	switch {
	case n < manyTypes:
		return page, false, nil
	case positions > nearAtOnce*n && s.sparse.Load() > 0: // the condition keeps sparse from wrapping
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

// readScoped reads a page with one of the scoped statements.
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

// CountMissing returns which positions in (after, through] have no event. The answer comes from
// one snapshot. A million events in the range cost 0.05 to 0.5 seconds, so bound the range.
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
