package postgres

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/pgfrontier/worker/store"
)

// ReadRanges returns at most limit visible events in the ranges, in order of
// position and from one snapshot. limit must be above 0.
func (s *Store) ReadRanges(ctx context.Context, q store.Querier, ranges []store.Range, limit int) ([]store.PersistedEvent, error) {
	if err := s.canRead(q); err != nil {
		return nil, err
	}
	if limit <= 0 {
		return nil, fmt.Errorf("storepostgres: ReadRanges: limit is %d: it must be above 0", limit)
	}
	list, err := json.Marshal(append([]store.Range{}, ranges...))
	if err != nil {
		return nil, fmt.Errorf("storepostgres: ReadRanges: %w", err)
	}
	events, err := s.query(ctx, q, limit, s.sql.ranges, string(list), limit)
	if err != nil {
		return nil, fmt.Errorf("storepostgres: read %d ranges of %s: %w", len(ranges), s.events, err)
	}
	return events, nil
}
