package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/store"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// repository knows the event store by its interfaces only.
type repository struct {
	events    store.EventStore
	streams   store.AggregateStreamReader
	reader    store.EventReader
	positions store.GlobalPositionReader
}

// order appends to two aggregates, and reads what it has done.
func order(ctx context.Context, db *sql.DB, s *storepostgres.Store) error {
	if _, err := db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS overview (id TEXT, version BIGINT)`); err != nil {
		return err
	}
	r := repository{events: s, streams: s, reader: s, positions: s}
	for _, step := range []struct {
		aggregateType, id string
		expected          store.ExpectedVersion
	}{
		{"Order", "o-1", store.NoStream()},
		{"Order", "o-1", store.Exact(1)},
		{"User", "u-1", store.Any()},
	} {
		if err := r.append(ctx, db, step.expected, step.aggregateType, step.id); err != nil {
			return err
		}
	}
	err := r.append(ctx, db, store.Exact(1), "Order", "o-1")
	if !errors.Is(err, store.ErrOptimisticConcurrency) {
		return fmt.Errorf("an append at a version that is over: %v", err)
	}
	return r.check(ctx, db)
}

func (r repository) append(ctx context.Context, db *sql.DB, expected store.ExpectedVersion, aggregateType, id string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	result, err := r.events.Append(ctx, tx, expected, []store.Event{{
		AggregateType: aggregateType,
		AggregateID:   id,
		EventType:     "Changed",
		EventID:       uuid.New(),
		EventVersion:  1,
		Payload:       []byte(`{}`),
		Metadata:      []byte(`{}`),
		TraceID:       store.NullString{String: "trace", Valid: true},
		CreatedAt:     time.Now(),
	}})
	if err != nil {
		return err
	}
	if expected.IsExact() && result.FromVersion() != expected.Value() || len(result.GlobalPositions) != 1 {
		return fmt.Errorf("appended %+v", result)
	}
	return tx.Commit()
}

// check reads in a transaction, as readers that take a *sql.Tx have taught it.
func (r repository) check(ctx context.Context, db *sql.DB) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	from := int64(2)
	stream, err := r.streams.ReadAggregateStream(ctx, tx, "Order", "o-1", &from, nil)
	if err != nil {
		return err
	}
	latest, err := r.positions.GetLatestGlobalPosition(ctx, tx)
	if err != nil {
		return err
	}
	events, err := r.reader.ReadEvents(ctx, tx, 0, 10)
	if err != nil {
		return err
	}
	if stream.Version() != 2 || stream.Len() != 1 || stream.IsEmpty() || len(events) != 3 || latest != events[2].GlobalPosition {
		return fmt.Errorf("there are %+v and %d events, the last at %d", stream, len(events), latest)
	}
	return nil
}
