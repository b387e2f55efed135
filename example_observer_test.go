package worker_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"sync/atomic"

	"github.com/pgfrontier/worker"
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

// Observer returns the hooks. They count and return: the worker waits for them.
func (m *Metrics) Observer() worker.Observer {
	return worker.Observer{
		BatchDone: func(b worker.Batch) {
			if b.Err == nil && !b.Overtaken {
				m.events.Add(int64(b.Events))
			}
		},
		ConsumerPaused: func(c worker.ConsumerInfo) { log.Printf("alarm: %s is paused: %s", c.Consumer, c.Reason) },
	}
}

// Hooks turn what happens into metrics and alarms.
func ExampleObserver() {
	ctx := context.Background()
	db, drop := database(`CREATE TABLE orders (id TEXT)`)
	defer drop()
	events := storepostgres.NewStore(storepostgres.DefaultStoreConfig())
	for range 3 {
		place(ctx, db, events, 500)
	}

	m := &Metrics{}
	// CatchUp runs a worker until all is handled. A program passes the option to New.
	check(workertest.CatchUp(ctx, db, events, []consumer.Consumer{Ledger{}}, worker.WithObserver(m.Observer())))
	fmt.Println(m.events.Load(), "events handled")
	// Output: 3 events handled
}
