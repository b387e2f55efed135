package main

import (
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/examples/internal/program"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
	"github.com/pgfrontier/worker/workertest"
)

func TestMain(m *testing.M) { program.Main(m, main) }

// The consumer gets the newest version of each event.
func Example() {
	program.Run(run)
	// Output:
	// handles version 3: {"price":{"cents":500,"currency":"EUR"}}
	// handles version 3: {"price":{"cents":1200,"currency":"USD"}}
	// handles version 3: {"price": {"cents": 300, "currency": "EUR"}}
	// revenue in euros: 800 cents
}

// The decoder's events survive faults.
func TestRevenueUnderFaults(t *testing.T) {
	d := pgtest.New(t)
	d.Exec(t, `CREATE TABLE revenue (currency TEXT PRIMARY KEY, cents INT NOT NULL)`)
	o := workertest.StormOptions{
		Model:   []string{`SELECT * FROM revenue`},
		Options: []worker.Option{worker.WithDecoder(upcast)},
		Limit:   pgtest.Patience,
	}
	for i := range 30 {
		payload := []string{`{"cents": 500}`, `{"cents": 1200, "currency": "USD"}`, `{"price": {"cents": 300, "currency": "EUR"}}`}[i%3]
		o.Events = append(o.Events, store.Event{AggregateType: "Order", AggregateID: uuid.NewString(), EventType: "OrderPlaced", EventVersion: 1 + i%3, Payload: []byte(payload)})
	}
	events := storepostgres.NewStore(storepostgres.DefaultStoreConfig())
	if err := workertest.Storm(t.Context(), d.DB, events, func() consumer.Consumer { return Revenue{} }, o); err != nil {
		t.Error(err)
	}
}
