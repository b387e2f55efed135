package postgres

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// Append appends events inside tx, in one round trip. All events belong to one aggregate. The
// events become visible when tx commits. If the store has a channel, it is notified at the same
// time.
//
// An EventVersion of 0 becomes 1. A nil Payload becomes an empty one. Metadata must be JSON;
// jsonb changes its spacing and order. CreatedAt is kept to the microsecond. The result
// has the events as stored; its payloads are the caller's slices.
//
// Wrong arguments are reported before a statement is sent, also [store.ErrNoEvents]. A
// [ConflictError], which is [store.ErrOptimisticConcurrency], reports that the aggregate is not
// at the expected version. Unless a ConflictError carries a database error, tx can still be
// used. [ErrDuplicateEventID] reports that the log already has an event with the EventID. After
// any error of the database, tx can only be rolled back.
//
// The aggregate stays locked until tx ends, so keep tx short. A transaction that appends to
// several aggregates must lock them in an order that all writers share. Under REPEATABLE READ
// and SERIALIZABLE, COMMIT may also find a conflict (SQLSTATE 40001).
func (s *Store) Append(ctx context.Context, tx *sql.Tx, expected store.ExpectedVersion, events []store.Event) (store.AppendResult, error) {
	if err := s.checkAppend(tx, expected, events); err != nil {
		return store.AppendResult{}, err
	}
	aggregateType, aggregateID := events[0].AggregateType, events[0].AggregateID
	persisted, err := s.insert(ctx, tx, expected, events)
	switch {
	case err != nil:
		return store.AppendResult{}, appendError(aggregateType, aggregateID, expected, err)
	case len(persisted) == 0:
		conflict := s.conflict(ctx, tx, aggregateType, aggregateID, expected)
		if conflict.Err == nil && (expected.IsAny() || expected.IsNoStream() && conflict.Actual == 0) {
			return store.AppendResult{}, fmt.Errorf("storepostgres: append to aggregate %s %s: %w", errtext.Unquoted(aggregateType), errtext.Value(aggregateID), pgdriver.Dropped(s.heads.String()+" or "+s.events.String()))
		}
		s.log.Debug(ctx, "append refused", "aggregate_type", aggregateType, "aggregate_id", aggregateID,
			"expected", expected.String(), "actual_version", conflict.Actual)
		return store.AppendResult{}, conflict
	case len(persisted) != len(events):
		return store.AppendResult{}, fmt.Errorf("storepostgres: %d of %d events were inserted: %w", len(persisted), len(events), pgdriver.Dropped(s.events.String()))
	case persisted[0].GlobalPosition < 1:
		return store.AppendResult{}, fmt.Errorf("storepostgres: an event was inserted into %s at position %d, and consumers begin at 1: roll back, and ALTER the SEQUENCE of its global_position with MINVALUE 1 START 1 RESTART 1",
			s.events, persisted[0].GlobalPosition)
	}
	result := store.AppendResult{Events: persisted, GlobalPositions: make([]int64, len(persisted))}
	for i, e := range persisted {
		result.GlobalPositions[i] = e.GlobalPosition
	}
	s.log.Debug(ctx, "events appended", "aggregate_type", aggregateType, "aggregate_id", aggregateID,
		"events", len(events), "version", result.ToVersion(), "first_position", persisted[0].GlobalPosition)
	return result, nil
}

// insert returns the events as stored. It returns no events if the aggregate is not at the
// expected version.
func (s *Store) insert(ctx context.Context, tx *sql.Tx, expected store.ExpectedVersion, events []store.Event) ([]store.PersistedEvent, error) {
	args := appendArgs(events)
	text := s.sql.appendAny
	switch {
	case expected.IsNoStream():
		text = s.sql.appendNew
	case expected.IsExact():
		text, args = s.sql.appendExact, append(args, expected.Value())
	}
	rows, err := tx.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // Err has returned every error
	persisted := make([]store.PersistedEvent, 0, len(events))
	for rows.Next() && len(persisted) < len(events) {
		p := persist(events[len(persisted)])
		if err := rows.Scan(&p.GlobalPosition, &p.AggregateVersion, &p.Metadata, &p.CreatedAt); err != nil {
			return nil, err
		}
		p.CreatedAt = p.CreatedAt.UTC()
		persisted = append(persisted, p)
	}
	return persisted, rows.Err()
}

func persist(e store.Event) store.PersistedEvent {
	p := store.PersistedEvent{
		AggregateType: e.AggregateType,
		AggregateID:   e.AggregateID,
		EventType:     e.EventType,
		EventID:       e.EventID,
		EventVersion:  max(e.EventVersion, 1),
		Payload:       e.Payload,
		TraceID:       e.TraceID,
		CorrelationID: e.CorrelationID,
		CausationID:   e.CausationID,
	}
	if p.Payload == nil {
		p.Payload = []byte{}
	}
	return p
}

// timestamp is a time layout that the server reads unambiguously and to the microsecond.
const timestamp = "2006-01-02T15:04:05.999999Z"

// appendArgs returns the parameters $1 to $14 of appendSQL.
func appendArgs(events []store.Event) []any {
	var (
		starts, lengths, ids, types, versions array
		traces, correlations, causations      array
		metadata, created                     array
		payloads                              = []byte{} // not nil: that would be NULL
	)
	for _, e := range events {
		starts.int(len(payloads) + 1) // SQL counts from 1
		lengths.int(len(e.Payload))
		payloads = append(payloads, e.Payload...)
		ids.raw(e.EventID.String())
		types.text(e.EventType)
		versions.int(max(e.EventVersion, 1))
		traces.nullText(e.TraceID)
		correlations.nullText(e.CorrelationID)
		causations.nullText(e.CausationID)
		metadata.text(string(e.Metadata)) // empty is NULL
		if e.CreatedAt.IsZero() {
			created.text("") // empty is NULL
		} else {
			created.raw(e.CreatedAt.UTC().Format(timestamp))
		}
	}
	return []any{events[0].AggregateType, events[0].AggregateID, len(events), payloads,
		starts.String(), lengths.String(), ids.String(), types.String(), versions.String(),
		traces.String(), correlations.String(), causations.String(), metadata.String(), created.String()}
}
