package consumer_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	"github.com/pgfrontier/worker/workertest"
)

// Worths writes a whole batch with one statement.
type Worths struct{ consumer.BatchOnly }

func (Worths) Name() string { return "worths_v1" }

func (Worths) HandleBatch(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
	ids, cents := make([]string, len(events)), make([]int32, len(events))
	for i, e := range events {
		var order struct{ Cents int32 }
		if err := json.Unmarshal(e.Payload, &order); err != nil {
			return &consumer.EventError{Index: i, Err: err} // the events before it are committed without it
		}
		ids[i], cents[i] = e.AggregateID, order.Cents
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO worths SELECT * FROM unnest($1::text[], $2::int[])`, ids, cents)
	return err
}

// A batch consumer handles all events of a batch at once, and names the event that it cannot
// handle.
func ExampleBatchConsumer() {
	ctx := context.Background()
	db, drop := database(`CREATE TABLE worths (id TEXT PRIMARY KEY, cents INT NOT NULL)`)
	defer drop()

	events := []store.Event{event("Order", 500), event("Order", 1200), event("Order", 300)}
	err := workertest.Handle(ctx, db, Worths{}, events, func(tx *sql.Tx) error {
		var n, cents int
		err := tx.QueryRowContext(ctx, `SELECT count(*), sum(cents) FROM worths`).Scan(&n, &cents)
		fmt.Println(n, "orders of", cents, "cents in one statement")
		return err
	})
	fmt.Println("error:", err)

	events[1].Payload = []byte(`{"cents": "many"}`)
	err = workertest.Handle(ctx, db, Worths{}, events, nil)
	var poison *consumer.EventError
	if errors.As(err, &poison) {
		fmt.Println("the event at fault:", poison.Index)
	}
	// Output:
	// 3 orders of 2000 cents in one statement
	// error: <nil>
	// the event at fault: 1
}
