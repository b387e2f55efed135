package postgres

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// ReadAges returns the first visible event above each place, and the event's age. Places with
// types need the index (aggregate_type, global_position).
func (s *Store) ReadAges(ctx context.Context, q store.Querier, places []store.Place) ([]store.Waiting, error) {
	if err := s.canRead(q); err != nil {
		return nil, err
	}
	list, err := json.Marshal(append([]store.Place{}, places...))
	if err != nil {
		return nil, fmt.Errorf("storepostgres: ReadAges: %w", err)
	}
	all, err := pgdriver.QueryAll(ctx, q, pgdriver.Columns(func(w *store.Waiting) []any { return []any{&w.Position, pgdriver.Duration(&w.Age)} }), s.sql.ages, s.args(string(list))...)
	if err != nil {
		return nil, fmt.Errorf("storepostgres: read the ages of what waits above %d places in %s: %w", len(places), s.events, s.explain(err))
	}
	return all, nil
}
