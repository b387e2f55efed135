package main

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// Overview is a read model of orders.
type Overview struct{ handled func() }

var _ consumer.ScopedConsumer = (*Overview)(nil)

func (p *Overview) Name() string { return "overview_v1" }

func (p *Overview) AggregateTypes() []string { return []string{"Order"} }

func (p *Overview) Handle(ctx context.Context, tx *sql.Tx, event store.PersistedEvent) error {
	// In the transaction of the checkpoint.
	if _, err := tx.ExecContext(ctx, `INSERT INTO overview (id, version) VALUES ($1, $2)`, event.AggregateID, event.AggregateVersion); err != nil {
		return err
	}
	fmt.Println("overview:", event.AggregateType, event.AggregateID, event.AggregateVersion)
	p.handled()
	return nil
}

// Audit gets everything, and has no use for the transaction.
type Audit struct{ handled func() }

func (c *Audit) Name() string { return "audit_v1" }

func (c *Audit) Handle(ctx context.Context, tx *sql.Tx, event store.PersistedEvent) error {
	_ = ctx
	_ = tx
	fmt.Println("audit:", event.AggregateType, event.AggregateID, event.AggregateVersion)
	c.handled()
	return nil
}
