package main

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/examples/internal/program"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
	"github.com/pgfrontier/worker/workertest"
)

func TestMain(m *testing.M) { program.Main(m, main) }

// The second worker handles what the first has not, and nothing again.
func Example() {
	program.Run(run)
	// Output:
	// A worker starts:
	//   handles the order of ann: 500 cents
	//   handles the order of bob: 1200 cents
	//   handles the order of ann: 300 cents
	// ann: 2 orders, 800 cents
	// bob: 1 orders, 1200 cents
	// The worker has stopped.
	// A worker starts:
	//   handles the order of bob: 700 cents
	//   handles the order of cid: 100 cents
	// ann: 2 orders, 800 cents
	// bob: 2 orders, 1900 cents
	// cid: 1 orders, 100 cents
	// The worker has stopped.
}

// Crashes, lost connections and late commits do not change the read model.
func TestCustomersUnderFaults(t *testing.T) {
	d := pgtest.New(t) // a database with the library's tables
	d.Exec(t, `CREATE TABLE customers (name TEXT PRIMARY KEY, orders INT NOT NULL, cents INT NOT NULL)`)
	o := workertest.StormOptions{Model: []string{`SELECT name, orders, cents FROM customers`}, Limit: pgtest.Patience}
	for i := range 40 {
		payload, err := json.Marshal(OrderPlaced{Customer: fmt.Sprint("customer-", i%5), Cents: i})
		if err != nil {
			t.Fatal(err)
		}
		o.Events = append(o.Events, store.Event{AggregateType: "Order", AggregateID: uuid.NewString(), EventType: "OrderPlaced", Payload: payload})
	}
	events := storepostgres.NewStore(storepostgres.DefaultStoreConfig())
	if err := workertest.Storm(t.Context(), d.DB, events, func() consumer.Consumer { return Customers{} }, o); err != nil {
		t.Error(err)
	}
}
