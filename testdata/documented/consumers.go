package main

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/pgfrontier/worker/store"
)

// OrderProjection is scoped, as the documents show it.
type OrderProjection struct{}

func (p *OrderProjection) Name() string { return "order_overview_v1" }

func (p *OrderProjection) AggregateTypes() []string { return []string{"Order"} }

func (p *OrderProjection) Handle(ctx context.Context, tx *sql.Tx, event store.PersistedEvent) error {
	fmt.Println("projected", event.AggregateType, event.AggregateID)
	return nil
}

// NotificationConsumer gets everything.
type NotificationConsumer struct{}

func (c *NotificationConsumer) Name() string { return "notifications_v1" }

func (c *NotificationConsumer) Handle(ctx context.Context, tx *sql.Tx, event store.PersistedEvent) error {
	fmt.Println("notified", event.AggregateType, event.AggregateID)
	return nil
}
