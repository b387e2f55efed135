package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"log"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/store"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// An application decides on the events it has read, and appends to them if
// nobody else did.
func ExampleStore_Append() {
	eventStore := storepostgres.NewStore(storepostgres.NewStoreConfig(
		storepostgres.WithNotifyChannel("worker_events"),
	))

	pay := func(ctx context.Context, db *sql.DB, orderID string) error {
		order, err := eventStore.ReadAggregateStream(ctx, db, "Order", orderID, nil, nil)
		if err != nil {
			return err
		}
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		_, err = eventStore.Append(ctx, tx, store.Exact(order.Version()), []store.Event{{
			AggregateType: "Order",
			AggregateID:   orderID,
			EventType:     "OrderPaid",
			EventID:       uuid.New(),
			Payload:       []byte(`{"amount": 1250}`),
		}})
		if err != nil {
			return err
		}
		return tx.Commit()
	}

	db, err := sql.Open("pgx", "postgres://localhost:5432/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	switch err := pay(context.Background(), db, "1001"); {
	case errors.Is(err, store.ErrOptimisticConcurrency):
		log.Print("the order has changed: try again")
	case err != nil:
		log.Print(err)
	}
}
