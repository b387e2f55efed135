package main

import (
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/examples/internal/program"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
	"github.com/pgfrontier/worker/workertest"
)

func TestMain(m *testing.M) { program.Main(m, main) }

// One mail is sent for each order: when an answer is lost, when the provider has no time, and
// when the consumer handles the event again.
func Example() {
	program.Run(run)
	// Unordered output:
	// provider: sends a mail to ann
	// provider: its answer is lost
	// provider: has no time for bob
	// provider: sends a mail to cid
	// provider: the mail to ann is sent already
	// provider: sends a mail to bob
	// the consumer begins again, and dan orders
	// provider: sends a mail to dan
}

// Each order has one job, whatever happens to the consumer.
func TestReceiptsUnderFaults(t *testing.T) {
	d := pgtest.New(t)
	if err := migrations.ApplyJobs(t.Context(), d.DB, nil); err != nil {
		t.Fatal(err)
	}
	o := workertest.StormOptions{Model: []string{`SELECT kind, args FROM jobs`}, Limit: pgtest.Patience} // without the ids of a sequence
	for i := range 30 {
		o.Events = append(o.Events, store.Event{AggregateType: "Order", AggregateID: uuid.NewString(), EventType: "OrderPlaced", Payload: fmt.Appendf(nil, `{"customer": "customer-%d"}`, i%5)})
	}
	events := storepostgres.NewStore(storepostgres.DefaultStoreConfig())
	create := func() consumer.Consumer { return Receipts{jobs.NewClient(d.DB)} }
	if err := workertest.Storm(t.Context(), d.DB, events, create, o); err != nil {
		t.Error(err)
	}
}
