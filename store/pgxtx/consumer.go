package pgxtx

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// Handler is a [consumer.Consumer] whose Handle has a pgx.Tx. The rules of Consumer apply. The
// optional methods of consumers may be there, too: AggregateTypes, Version, Projection, StartAt,
// Partitions, and Forget(ctx context.Context, tx pgx.Tx, aggregateType, aggregateID string) error.
type Handler interface {
	Name() string
	Handle(ctx context.Context, tx pgx.Tx, event store.PersistedEvent) error
}

// BatchHandler is a [consumer.BatchConsumer] whose HandleBatch has a pgx.Tx. It may have the
// optional methods of a Handler.
type BatchHandler interface {
	Name() string
	HandleBatch(ctx context.Context, tx pgx.Tx, events []store.PersistedEvent) error
}

// Consumer makes a consumer of h, for a worker whose pool is one of [DB] or pgx/v5/stdlib. If h is a
// BatchHandler, too, its HandleBatch is called instead of Handle. Worker.Start refuses an h that has
// a method HandleBatch or Forget with a *sql.Tx.
func Consumer(h Handler) consumer.Consumer {
	if h, ok := h.(BatchHandler); ok {
		return BatchConsumer(h)
	}
	c := eachEvent{optional{h}, h}
	if p, ok := h.(partitions); ok {
		return struct {
			eachEvent
			partitions
		}{c, p}
	}
	return c
}

// BatchConsumer makes a consumer of h, as [Consumer] does.
func BatchConsumer(h BatchHandler) consumer.Consumer {
	c := eachBatch{optional: optional{h}, h: h}
	if p, ok := h.(partitions); ok {
		return struct {
			eachBatch
			partitions
		}{c, p}
	}
	return c
}

type eachEvent struct {
	optional
	h Handler
}

func (c eachEvent) Handle(ctx context.Context, _ *sql.Tx, e store.PersistedEvent) error {
	return In(ctx, func(tx pgx.Tx) error { return c.h.Handle(ctx, tx, e) })
}

type eachBatch struct {
	optional
	consumer.BatchOnly
	h BatchHandler
}

func (c eachBatch) HandleBatch(ctx context.Context, _ *sql.Tx, events []store.PersistedEvent) error {
	return In(ctx, func(tx pgx.Tx) error { return c.h.HandleBatch(ctx, tx, events) })
}

// optional has the optional methods of consumers. Where the handler has none, each returns what a
// consumer without it has.
type optional struct{ of interface{ Name() string } }

type partitions interface{ Partitions() consumer.Partitions }

func (o optional) Name() string { return o.of.Name() }

func (o optional) AggregateTypes() []string {
	if h, ok := o.of.(interface{ AggregateTypes() []string }); ok {
		return h.AggregateTypes()
	}
	return nil
}

func (o optional) Version() int {
	if h, ok := o.of.(interface{ Version() int }); ok {
		return h.Version()
	}
	return 0
}

func (o optional) Projection() string {
	if h, ok := o.of.(interface{ Projection() string }); ok {
		return h.Projection()
	}
	return ""
}

func (o optional) StartAt() consumer.Start {
	if h, ok := o.of.(interface{ StartAt() consumer.Start }); ok {
		return h.StartAt()
	}
	return consumer.AtBeginning()
}

type forgetter interface {
	Forget(ctx context.Context, tx pgx.Tx, aggregateType, aggregateID string) error
}

// Forgets reports whether Forget does anything.
func (o optional) Forgets() bool {
	_, ok := o.of.(forgetter)
	return ok
}

func (o optional) Forget(ctx context.Context, _ *sql.Tx, aggregateType, aggregateID string) error {
	h, ok := o.of.(forgetter)
	if !ok {
		return nil
	}
	return In(ctx, func(tx pgx.Tx) error { return h.Forget(ctx, tx, aggregateType, aggregateID) })
}

// CheckConsumer returns an error for a method that the worker would not call. Package consumer calls it.
func (o optional) CheckConsumer() error {
	const wrong = "pgxtx: %T has a %s that takes a *sql.Tx: let it take a pgx.Tx"
	if _, ok := o.of.(interface {
		Forget(ctx context.Context, tx *sql.Tx, aggregateType, aggregateID string) error
	}); ok {
		return fmt.Errorf(wrong, o.of, "Forget")
	}
	if _, ok := o.of.(interface {
		HandleBatch(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error
	}); ok {
		return fmt.Errorf(wrong, o.of, "HandleBatch")
	}
	return nil
}
