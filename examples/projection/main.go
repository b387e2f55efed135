// Command projection keeps a read model of orders, a row for each customer. Its worker
// stops, orders go on, and the next worker continues where the first has stopped.
//
//	go run ./examples/projection
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/examples/internal/database"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := database.With(ctx, run); err != nil {
		log.Fatal(err)
	}
}

// OrderPlaced is the payload of an event.
type OrderPlaced struct {
	Customer string `json:"customer"`
	Cents    int    `json:"cents"`
}

// Customers is the read model. examples/rebuild replaces one with its next version.
type Customers struct{}

func (Customers) Name() string             { return "customers_v1" }
func (Customers) AggregateTypes() []string { return []string{"Order"} } // others are skipped in SQL

// Handle is called once for each event whose effects are committed: the row and the
// consumer's position are in one transaction. So it may add.
func (Customers) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	var o OrderPlaced
	if err := json.Unmarshal(e.Payload, &o); err != nil {
		return fmt.Errorf("payload of %s: %w", e.EventType, err)
	}
	fmt.Printf("  handles the order of %s: %d cents\n", o.Customer, o.Cents)
	_, err := tx.ExecContext(ctx, `
		INSERT INTO customers (name, orders, cents) VALUES ($1::text, 1, $2::int)
		ON CONFLICT (name) DO UPDATE SET orders = customers.orders + 1, cents = customers.cents + excluded.cents`,
		o.Customer, o.Cents)
	return err
}

func run(ctx context.Context, db *sql.DB) error {
	if err := migrations.Apply(ctx, db, nil); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, `CREATE TABLE customers (name TEXT PRIMARY KEY, orders INT NOT NULL, cents INT NOT NULL)`); err != nil {
		return err
	}
	events := storepostgres.NewStore(storepostgres.DefaultStoreConfig())

	for _, day := range [][]OrderPlaced{
		{{"ann", 500}, {"bob", 1200}, {"ann", 300}},
		{{"bob", 700}, {"cid", 100}},
	} {
		var last int64
		for _, o := range day {
			position, err := place(ctx, db, events, o)
			if err != nil {
				return err
			}
			last = position
		}
		fmt.Println("A worker starts:")
		if err := workUntil(ctx, db, events, last); err != nil {
			return err
		}
		if err := show(ctx, db); err != nil {
			return err
		}
		fmt.Println("The worker has stopped.")
	}
	return nil
}

// place appends an event. With its transaction you may write whatever belongs together.
func place(ctx context.Context, db *sql.DB, events store.EventStore, o OrderPlaced) (position int64, err error) {
	payload, err := json.Marshal(o)
	if err != nil {
		return 0, err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	appended, err := events.Append(ctx, tx, store.NoStream(), []store.Event{{
		AggregateType: "Order", AggregateID: uuid.NewString(),
		EventType: "OrderPlaced", EventID: uuid.New(), Payload: payload,
	}})
	if err != nil {
		return 0, err
	}
	return appended.GlobalPositions[0], tx.Commit()
}

// workUntil runs a worker until the read model has the event at a position. A program of
// yours runs it for as long as it lives: return w.Start(ctx).
func workUntil(ctx context.Context, db *sql.DB, events store.Log, position int64) error {
	w := worker.New(db, events, []consumer.Consumer{Customers{}})
	ended := make(chan error, 1)
	go func() { ended <- w.Start(ctx) }()
	err := w.WaitFor(ctx, Customers{}.Name(), position)
	w.Stop() // the batch in flight is finished
	return errors.Join(err, <-ended)
}

// show prints the read model.
func show(ctx context.Context, db *sql.DB) error {
	rows, err := db.QueryContext(ctx, `SELECT name, orders, cents FROM customers ORDER BY name`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var orders, cents int
		if err := rows.Scan(&name, &orders, &cents); err != nil {
			return err
		}
		fmt.Printf("%s: %d orders, %d cents\n", name, orders, cents)
	}
	return rows.Err()
}
