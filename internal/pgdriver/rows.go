package pgdriver

import (
	"context"
	"database/sql"

	"github.com/pgfrontier/worker/store"
)

// QueryAll returns all rows of a query, each as scan makes it.
func QueryAll[T any](ctx context.Context, q store.Querier, scan func(*sql.Rows) (T, error), query string, args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // Err has told everything
	var all []T
	for rows.Next() {
		one, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, rows.Err()
}
