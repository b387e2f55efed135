package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// An application reads an aggregate, decides, and appends unless another writer has appended
// first.
func ExampleStore_Append() {
	ctx := context.Background()
	t, drop := pgtest.Example()
	defer drop()
	db := pgtest.New(t).DB // sql.Open("pgx", url), in a program
	eventStore := storepostgres.NewStore(storepostgres.NewStoreConfig(
		storepostgres.WithNotifyChannel("worker_events"),
	))
	appendTo := func(expected store.ExpectedVersion, eventType string) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() // a no-op after Commit
		_, err = eventStore.Append(ctx, tx, expected, []store.Event{{
			AggregateType: "Order",
			AggregateID:   "1001",
			EventType:     eventType,
			EventID:       uuid.New(),
			Payload:       []byte(`{"cents": 1250}`),
		}})
		if err != nil {
			return err
		}
		return tx.Commit()
	}

	if err := appendTo(store.NoStream(), "OrderPlaced"); err != nil {
		log.Panic(err)
	}
	order, err := eventStore.ReadAggregateStream(ctx, db, "Order", "1001", nil, nil)
	if err != nil {
		log.Panic(err)
	}
	// Two callers have read the same version, and both want to pay.
	for range 2 {
		switch err := appendTo(store.Exact(order.Version()), "OrderPaid"); {
		case errors.Is(err, store.ErrOptimisticConcurrency):
			fmt.Println("the order has changed: read it and decide again")
		case err != nil:
			log.Panic(err)
		default:
			fmt.Println("paid")
		}
	}
	// Output:
	// paid
	// the order has changed: read it and decide again
}
