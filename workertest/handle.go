// Package workertest runs consumers and the handlers of jobs in an application's tests, on a real
// database with the tables of package migrations.
//
// [Handle] calls a consumer with given events, and rolls its changes back. [CatchUp] runs a
// worker until the consumers have handled all events of the log. [Storm] does so under
// faults, and compares the read model.
//
// [HandleJob] calls a handler of jobs with given arguments, and returns the job's outcome.
// [Drain] runs a worker until all due jobs have ended. [Enqueued] lists the jobs of a
// transaction or a database.
package workertest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/delivery"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// Handle passes events to c as a worker does, all in one transaction. It then calls inspect,
// which reads c's writes in the same transaction. Handle always rolls the transaction back, so
// tests can share a database. inspect may be nil.
//
// The events are numbered as in an empty log: positions from 1, and versions from 1 per
// aggregate. A zero EventID or CreatedAt is filled in. A ScopedConsumer receives its
// types only, and a BatchConsumer all events at once. Handle calls the key function of a
// [consumer.Partitioned] twice for each event. Two different answers are an error.
//
// Handle returns inspect's error unchanged. Any other error names the consumer and the event
// that failed. If the handler ended its transaction in any way, the error is
// [worker.ErrTransactionEnded] and names the way. The handler's writes may then stay.
func Handle(ctx context.Context, db *sql.DB, c consumer.Consumer, events []store.Event, inspect func(tx *sql.Tx) error) error {
	if db == nil || pgdriver.IsNil(c) {
		return errors.New("workertest: db or the consumer is nil")
	}
	fail := func(err error) error { return fmt.Errorf("workertest: consumer %q: %w", c.Name(), err) }
	given := wanted(c, persisted(events))
	if err := checkPartitions(c, given); err != nil {
		return fail(err)
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return fail(err)
	}
	defer func() { _ = conn.Close() }()
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return fail(err)
	}
	defer func() { _ = tx.Rollback() }()
	t, err := number(ctx, tx, conn)
	if err != nil {
		return fail(err)
	}
	ctx = delivery.With(ctx, consumer.Delivery{Consumer: c.Name(), Attempt: 1}, delivery.LenderOf(conn))
	if err := deliver(ctx, t, c, given); err != nil {
		return fail(err)
	}
	if inspect == nil {
		return nil
	}
	return inspect(tx)
}

// deliver calls the handler, and checks the transaction after each call.
func deliver(ctx context.Context, t *transaction, c consumer.Consumer, events []store.PersistedEvent) error {
	if bulk, ok := c.(consumer.BatchConsumer); ok && len(events) > 0 {
		return t.call(ctx, func() error { return bulk.HandleBatch(ctx, t.tx, events) })
	}
	for _, e := range events {
		if err := t.call(ctx, func() error { return c.Handle(ctx, t.tx, e) }); err != nil {
			return fmt.Errorf("at position %d (event %s, type %s): %w", e.GlobalPosition, e.EventID, errtext.Value(e.EventType), err)
		}
	}
	return nil
}

// checkPartitions returns the error of a worker about a consumer's partitions. It also returns an
// error for a key that is not pure. No worker detects such a key, which would leave events out.
func checkPartitions(c consumer.Consumer, events []store.PersistedEvent) error {
	parts, ok := c.(consumer.Partitioned)
	if !ok {
		return nil
	}
	p := parts.Partitions()
	if err := p.Check(); err != nil {
		return fmt.Errorf("Partitions: %w", err)
	}
	for _, e := range events {
		if a, b := p.Key.Of(e), p.Key.Of(e); a != b {
			return fmt.Errorf("the key %s returned %s, then %s for the event at position %d (type %s): make it depend on nothing but the event",
				errtext.Value(p.Key.Name()), errtext.Value(a), errtext.Value(b), e.GlobalPosition, errtext.Value(e.EventType))
		}
	}
	return nil
}

// persisted numbers events as an empty log does.
func persisted(events []store.Event) []store.PersistedEvent {
	type aggregate struct{ kind, id string }
	versions := map[aggregate]int64{}
	all := make([]store.PersistedEvent, len(events))
	for i, e := range events {
		a := aggregate{e.AggregateType, e.AggregateID}
		versions[a]++
		p := store.PersistedEvent{
			GlobalPosition: int64(i) + 1, AggregateVersion: versions[a],
			AggregateType: e.AggregateType, AggregateID: e.AggregateID, EventType: e.EventType,
			EventID: e.EventID, EventVersion: e.EventVersion, Payload: e.Payload, Metadata: e.Metadata,
			TraceID: e.TraceID, CorrelationID: e.CorrelationID, CausationID: e.CausationID, CreatedAt: e.CreatedAt,
		}
		if p.EventID == uuid.Nil {
			p.EventID = uuid.New()
		}
		if p.CreatedAt.IsZero() {
			p.CreatedAt = time.Now()
		}
		p.CreatedAt = p.CreatedAt.UTC()
		all[i] = p
	}
	return all
}

// wanted returns the events that a worker delivers to c.
func wanted(c consumer.Consumer, events []store.PersistedEvent) []store.PersistedEvent {
	scoped, ok := c.(consumer.ScopedConsumer)
	if !ok {
		return events
	}
	types := scoped.AggregateTypes()
	if len(types) == 0 {
		return events
	}
	return slices.DeleteFunc(events, func(e store.PersistedEvent) bool { return !slices.Contains(types, e.AggregateType) })
}
