package consumer_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/workertest"
)

// Totals is a projection: the number of orders and their total value.
type Totals struct{}

func (Totals) Name() string { return "totals_v1" }

func (Totals) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	_, err := tx.ExecContext(ctx, `UPDATE totals SET orders = orders + 1, cents = cents + ($1::jsonb->>'cents')::int`, string(e.Payload))
	return err
}

// A consumer handles one event at a time, in the transaction passed to Handle.
func ExampleConsumer() {
	ctx := context.Background()
	db, drop := database(`CREATE TABLE totals AS SELECT 0 AS orders, 0 AS cents`)
	defer drop()

	// Handle calls the consumer as a worker does. A worker also commits.
	events := []store.Event{event("Order", 500), event("Order", 1200)}
	err := workertest.Handle(ctx, db, Totals{}, events, func(tx *sql.Tx) error {
		var orders, cents int
		err := tx.QueryRowContext(ctx, `SELECT orders, cents FROM totals`).Scan(&orders, &cents)
		fmt.Println(orders, "orders of", cents, "cents")
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: 2 orders of 1700 cents
}
