package workertest_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	"github.com/pgfrontier/worker/workertest"
)

// Events that need not be in any log, and nothing left in the database.
func ExampleHandle() {
	var db *sql.DB // of the tests, with the projection's tables
	test := func(t *testing.T) {
		events := []store.Event{{AggregateType: "Order", AggregateID: "order-1", EventType: "OrderPlaced", Payload: []byte(`{}`)}}
		err := workertest.Handle(t.Context(), db, &counter{name: "orders"}, events, func(tx *sql.Tx) error {
			var n int
			if err := tx.QueryRow(`SELECT n FROM counts WHERE id = 'orders order-1'`).Scan(&n); err != nil {
				return err
			}
			if n != 1 {
				return fmt.Errorf("counted %d orders, want 1", n)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	_ = test
}

// All that was appended, through a real worker.
func ExampleCatchUp() {
	var db *sql.DB // of this test alone, with the tables of package migrations
	test := func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := workertest.CatchUp(ctx, db, newStore(), []consumer.Consumer{&counter{name: "orders"}}); err != nil {
			t.Fatal(err)
		}
	}
	_ = test
}
