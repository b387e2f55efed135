package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/examples/internal/program"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
	"github.com/pgfrontier/worker/workertest"
)

func TestMain(m *testing.M) { program.Main(m, main) }

// The mistake is found, and each mail is sent once.
func Example() {
	program.Run(run)
	// Output:
	// customers_v1 is deployed:
	//   customers_v1 sends a mail to bob: OrderPlaced
	//   customers_v1 sends a mail to cid: OrderPlaced
	// bob: 1200 cents
	// cid: 100 cents
	// Both are deployed:
	//   customers_v1 sends a mail to cid: OrderPlaced
	// at position 4 only customers_v1 has [{"name":"bob","cents":1200}], and only customers_v2 has [{"name":"bob","cents":0}]
	// bob: 0 cents
	// cid: 300 cents
	//   customers_v2 sends a mail to bob: OrderPlaced
	// Only customers_v2 is deployed:
	//   customers_v2 sends a mail to bob: OrderPlaced
	// bob: 1000 cents
	// cid: 300 cents
}

// A version with the code of the one in use has the same rows.
func TestVersionsAgree(t *testing.T) {
	s := shop{db: pgtest.New(t).DB, events: storepostgres.NewStore(storepostgres.DefaultStoreConfig())}
	for range 200 {
		payload, err := json.Marshal(Order{fmt.Sprint("customer-", rand.IntN(5)), rand.IntN(1000)})
		if err != nil {
			t.Fatal(err)
		}
		id := uuid.NewString()
		order := []store.Event{{AggregateType: "Order", AggregateID: id, EventType: "OrderPlaced", EventID: uuid.New(), Payload: payload}}
		if rand.IntN(3) == 0 {
			order = append(order, store.Event{AggregateType: "Order", AggregateID: id, EventType: "OrderCancelled", EventID: uuid.New(), Payload: payload})
		}
		if err := s.inTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
			_, err := s.events.Append(ctx, tx, store.NoStream(), order)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []Customers{{2}, {3}} { // 3 has the code of 2
		if err := s.inTx(t.Context(), c.prepare); err != nil {
			t.Fatal(err)
		}
	}
	if err := workertest.CatchUp(t.Context(), s.db, s.events, []consumer.Consumer{Customers{2}, Customers{3}}); err != nil {
		t.Fatal(err)
	}
	o, err := ops.New(s.db)
	if err != nil {
		t.Fatal(err)
	}
	found, err := o.Compare(t.Context(), ops.Comparison{
		Old: "customers_v2", OldRows: `SELECT name, cents FROM customers_v2`,
		New: "customers_v3", NewRows: `SELECT name, cents FROM customers_v3`,
	})
	if err != nil || found.Position == 0 || len(found.OnlyOld)+len(found.OnlyNew) > 0 {
		t.Errorf("compared %+v: %v, should find no difference", found, err)
	}
}
