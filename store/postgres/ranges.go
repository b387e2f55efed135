package postgres

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/pgfrontier/worker/store"
)

// rangesSQL does an index lookup for each range. The ranges are few and far apart, and there
// may be millions of events between them.
const rangesSQL = `SELECT {columns}
  FROM jsonb_to_recordset($1::jsonb) AS r (first bigint, last bigint)
 CROSS JOIN LATERAL (
       SELECT * FROM {events}
        WHERE global_position BETWEEN r.first AND r.last
        ORDER BY global_position LIMIT $2::bigint) AS e
 WHERE {proof 3}
 ORDER BY global_position LIMIT $2::bigint`

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
