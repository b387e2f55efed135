package postgres

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/pgfrontier/worker/store"
)

// ReadScoped returns the events of r.Types with r.After < position <= r.UpTo,
// at most r.Limit, how far they reach, and which positions up to there have no
// event of any type: all as one snapshot shows it. It needs the index
// (aggregate_type, global_position). Its cost grows with the events of all
// types up to Through, some 0.1 to 0.5 seconds a million: UpTo bounds it.
//
// r must name a type; After must not be negative nor above UpTo, and Limit
// must be above 0.
func (s *Store) ReadScoped(ctx context.Context, q store.Querier, r store.ScopedRange) (store.ScopedPage, error) {
	if err := s.canRead(q); err != nil {
		return store.ScopedPage{}, err
	}
	types, err := scopedTypes(r)
	if err != nil {
		return store.ScopedPage{}, fmt.Errorf("storepostgres: ReadScoped: %w", err)
	}
	rows, err := q.QueryContext(ctx, s.sql.scoped, r.After, r.UpTo, types, r.Limit)
	if err != nil {
		return store.ScopedPage{}, s.scopedError(r, err)
	}
	defer func() { _ = rows.Close() }() // Err has told everything
	page, err := scanScoped(rows, r.Limit)
	if err != nil {
		return store.ScopedPage{}, s.scopedError(r, err)
	}
	return page, nil
}

func (s *Store) scopedError(r store.ScopedRange, err error) error {
	return fmt.Errorf("storepostgres: read the events of %s of types %q in (%d, %d]: %w", s.events, r.Types, r.After, r.UpTo, err)
}

// scopedTypes checks r and returns its types, each once, as an array.
func scopedTypes(r store.ScopedRange) (string, error) {
	switch {
	case r.Limit <= 0:
		return "", fmt.Errorf("the Limit is %d: it must be above 0", r.Limit)
	case r.After < 0:
		return "", fmt.Errorf("the After is %d: positions begin at 1, use 0 for the beginning", r.After)
	case r.UpTo < r.After:
		return "", fmt.Errorf("the UpTo %d is below After %d", r.UpTo, r.After)
	case len(r.Types) == 0:
		return "", errors.New("the list Types is empty: name the aggregate types, or use ReadEvents for all of them")
	}
	var types array
	for _, t := range slices.Compact(slices.Sorted(slices.Values(r.Types))) {
		if err := checkText("Types", t); err != nil {
			return "", err
		}
		types.text(t)
	}
	return types.String(), nil
}

// scanScoped reads a first row that describes the page, in four columns that
// are NULL in the rows after it, and then the events.
func scanScoped(rows *sql.Rows, limit int) (page store.ScopedPage, err error) {
	var events eventPage
	missing := &page.Missing
	event := events.dest()
	head := []any{&page.Through, &missing.Count, &missing.First, &missing.Last}
	if !rows.Next() {
		return page, cmp.Or(rows.Err(), io.ErrUnexpectedEOF)
	}
	if err := rows.Scan(append(head, slices.Repeat([]any{skip{}}, len(event))...)...); err != nil {
		return page, err
	}
	if missing.Count == 0 {
		*missing = store.Missing{}
	}
	dest := append(slices.Repeat([]any{skip{}}, len(head)), event...)
	for rows.Next() {
		if err := rows.Scan(dest...); err != nil {
			return page, err
		}
		events.keep(limit)
	}
	page.Events = events.events
	return page, rows.Err()
}

// skip is a column that is not wanted.
type skip struct{}

func (skip) Scan(any) error { return nil }
