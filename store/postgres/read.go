package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// ReadEvents returns at most limit visible events above position after, in
// order of position. limit must be above 0.
func (s *Store) ReadEvents(ctx context.Context, q store.Querier, after int64, limit int) ([]store.PersistedEvent, error) {
	if err := s.canRead(q); err != nil {
		return nil, err
	}
	if limit <= 0 {
		return nil, fmt.Errorf("storepostgres: ReadEvents: limit is %d: it must be above 0", limit)
	}
	events, err := s.query(ctx, q, limit, s.sql.read, after, limit)
	if err != nil {
		return nil, fmt.Errorf("storepostgres: read the events of %s after position %d: %w", s.events, after, err)
	}
	return events, nil
}

// GetLatestGlobalPosition returns the highest visible position, 0 for an empty log. Lower
// positions may still become visible.
func (s *Store) GetLatestGlobalPosition(ctx context.Context, q store.Querier) (int64, error) {
	if err := s.canRead(q); err != nil {
		return 0, err
	}
	var position int64
	if err := q.QueryRowContext(ctx, s.sql.latest, s.args()...).Scan(&position); err != nil {
		return 0, fmt.Errorf("storepostgres: read the latest position of %s: %w", s.events, s.explain(err))
	}
	return position, nil
}

// ReadAggregateStream returns the events of one aggregate from fromVersion to toVersion, both
// included, in order of version. A nil bound does not limit the stream. An aggregate without
// events has an empty stream.
func (s *Store) ReadAggregateStream(ctx context.Context, q store.Querier, aggregateType, aggregateID string, fromVersion, toVersion *int64) (store.Stream, error) {
	stream := store.Stream{AggregateType: aggregateType, AggregateID: aggregateID}
	from, to := int64(1), int64(math.MaxInt64)
	if fromVersion != nil {
		from = *fromVersion
	}
	if toVersion != nil {
		to = *toVersion
	}
	if err := s.canRead(q); err != nil {
		return stream, err
	}
	if err := checkAggregate(aggregateType, aggregateID); err != nil {
		return stream, fmt.Errorf("storepostgres: ReadAggregateStream: %w", err)
	}
	if from > to {
		return stream, fmt.Errorf("storepostgres: ReadAggregateStream: fromVersion %d is above toVersion %d", from, to)
	}
	var err error
	if stream.Events, err = collect(ctx, q, math.MaxInt, s.sql.stream, aggregateType, aggregateID, from, to); err != nil {
		return stream, fmt.Errorf("storepostgres: read aggregate %s %s: %w", errtext.Unquoted(aggregateType), errtext.Value(aggregateID), err)
	}
	return stream, nil
}

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

// ReadAges returns, per place, the first visible event above the place, and its age. Places with
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

// query executes a read with the proof of the incarnation.
func (s *Store) query(ctx context.Context, q store.Querier, limit int, text string, args ...any) ([]store.PersistedEvent, error) {
	events, err := collect(ctx, q, limit, text, s.args(args...)...)
	return events, s.explain(err)
}

func collect(ctx context.Context, q store.Querier, limit int, text string, args ...any) ([]store.PersistedEvent, error) {
	rows, err := q.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // Err has returned every error
	var page eventPage
	dest := page.dest()
	for rows.Next() {
		if err := rows.Scan(dest...); err != nil {
			return nil, fmt.Errorf("the event at position %d: %w", page.row.GlobalPosition, err)
		}
		page.keep(limit)
	}
	return page.events, rows.Err()
}

// eventPage collects events. All events are scanned into the same row, so that Scan's arguments
// are built once and not once an event.
type eventPage struct {
	row    store.PersistedEvent
	events []store.PersistedEvent
}

// dest returns the destinations for the columns of eventColumns.
func (p *eventPage) dest() []any {
	e := &p.row
	return []any{&e.GlobalPosition, &e.AggregateVersion, &e.AggregateType, &e.AggregateID, &e.EventType,
		&e.EventID, &e.EventVersion, &e.Payload, &e.Metadata, &e.TraceID, &e.CorrelationID, &e.CausationID, &e.CreatedAt}
}

// keep adds the scanned row. Once a page has outgrown its first allocation, it grows in large
// steps up to limit. So a page of one event stays small.
func (p *eventPage) keep(limit int) {
	if n := len(p.events); n == cap(p.events) && n < limit {
		p.events = slices.Grow(p.events, min(limit-n, max(16, 8*n)))
	}
	p.row.CreatedAt = p.row.CreatedAt.UTC()
	p.events = append(p.events, p.row)
	p.row = store.PersistedEvent{}
}
