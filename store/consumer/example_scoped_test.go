package consumer_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/workertest"
)

// Invoices is a projection of two aggregate types. Events of other types are skipped in SQL.
type Invoices struct{}

func (Invoices) Name() string             { return "invoices_v1" }
func (Invoices) AggregateTypes() []string { return []string{"Invoice", "Reminder"} }

func (Invoices) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO invoices VALUES ($1::text)`, e.EventType)
	return err
}

// A scoped consumer receives only the events of its aggregate types.
func ExampleScopedConsumer() {
	ctx := context.Background()
	db, drop := database(`CREATE TABLE invoices (what TEXT)`)
	defer drop()

	events := []store.Event{event("Order", 500), event("Invoice", 500), event("Payment", 200), event("Reminder", 300)}
	err := workertest.Handle(ctx, db, Invoices{}, events, func(tx *sql.Tx) error {
		var all string
		err := tx.QueryRowContext(ctx, `SELECT string_agg(what, ', ' ORDER BY what) FROM invoices`).Scan(&all)
		fmt.Println(all)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: InvoiceMade, ReminderMade
}
