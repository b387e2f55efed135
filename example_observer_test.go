package worker_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"sync/atomic"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
	"github.com/pgfrontier/worker/workertest"
)

// Ledger writes down each order.
type Ledger struct{}

func (Ledger) Name() string { return "ledger_v1" }

func (Ledger) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO orders VALUES ($1::text)`, e.AggregateID)
	return err
}

// Metrics counts what a worker does.
type Metrics struct{ events atomic.Int64 }

// Observe counts and returns: the worker waits for it.
func (m *Metrics) Observe(e observe.Event) {
	switch e := e.(type) {
	case observe.BatchDone:
		if e.Err == nil && !e.Overtaken {
			m.events.Add(int64(e.Events))
		}
	case observe.ConsumerPaused:
		log.Printf("alarm: %s is paused: %s", e.Consumer, e.Reason)
	}
}

// An observer turns events into metrics and alarms.
func ExampleWithObserver() {
	ctx := context.Background()
	db, drop := database(`CREATE TABLE orders (id TEXT)`)
	defer drop()
	events := storepostgres.NewStore(storepostgres.DefaultStoreConfig())
	for range 3 {
		place(ctx, db, events, 500)
	}

	m := &Metrics{}
	// CatchUp runs a worker until all is handled. A program passes the option to New.
	check(workertest.CatchUp(ctx, db, events, []consumer.Consumer{Ledger{}}, worker.WithObserver(m.Observe)))
	fmt.Println(m.events.Load(), "events handled")
	// Output: 3 events handled
}
