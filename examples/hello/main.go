// Command hello is a shop: people order, two consumers handle the orders, and the console
// shows both in a browser. One consumer cannot handle the third order. It stands still
// until you let it go on.
//
//	go run ./examples/hello
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/examples/internal/database"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

var (
	every = flag.Duration("every", 2*time.Second, "the `time` between two orders")
	open  = flag.Bool("open", hasDesktop(), "open the console in a browser")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := database.With(ctx, run); err != nil {
		log.Fatal(err)
	}
}

const tables = `
CREATE TABLE totals AS SELECT 0 AS orders, 0 AS cents;
CREATE TABLE parcels (order_id TEXT PRIMARY KEY)`

// Totals counts orders and what they are worth. One of less than nothing it cannot handle.
type Totals struct{}

func (Totals) Name() string { return "totals_v1" }

func (Totals) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	var order struct{ Cents int }
	if err := json.Unmarshal(e.Payload, &order); err != nil {
		return err
	}
	if order.Cents < 0 {
		return fmt.Errorf("an order of %d cents", order.Cents)
	}
	_, err := tx.ExecContext(ctx, `UPDATE totals SET orders = orders + 1, cents = cents + $1::int`, order.Cents)
	return err
}

// Parcels packs a parcel for each order.
type Parcels struct{}

func (Parcels) Name() string { return "parcels_v1" }

func (Parcels) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO parcels (order_id) VALUES ($1::text)`, e.AggregateID)
	return err
}

// run is the shop, until ctx ends.
func run(ctx context.Context, db *sql.DB) error {
	if err := migrations.Apply(ctx, db, nil); err != nil {
		return err
	}
	if err := migrations.ApplyJobs(ctx, db, nil); err != nil { // only the console's page of jobs needs them
		return err
	}
	if _, err := db.ExecContext(ctx, tables); err != nil {
		return err
	}
	listener, err := listen()
	if err != nil {
		return err
	}
	url := "http://" + listener.Addr().String() + "/"
	fmt.Printf("The console is at %s\nCtrl-C ends everything.\n\n", url)
	if *open {
		openBrowser(ctx, url)
	}

	events := storepostgres.NewStore(storepostgres.DefaultStoreConfig())
	w := worker.New(db, events, []consumer.Consumer{Totals{}, Parcels{}},
		worker.WithFailurePolicy(worker.FailPause), // the other consumer goes on
		worker.WithMaxConsecutiveFailures(2),
		worker.WithObserver(observe.On(func(c observe.ConsumerPaused) {
			fmt.Printf(remedy, c.Consumer, c.Reason, url, c.Consumer, c.Consumer)
		})))

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 3)
	go func() { ended <- w.Start(ctx) }()
	go func() { ended <- serve(ctx, listener, db) }()
	go func() { ended <- sell(ctx, db, events) }()
	err = <-ended // whichever ends first ends the others
	stop()
	return errors.Join(err, <-ended, <-ended)
}

const remedy = `
%s stands still: %s
  1. Open %sconsumer?name=%s
  2. "Skip the event": give a reason, read the preview, press "skip now".
  3. "Resume": give a reason, read the preview, press "resume now".
Then %s goes on without that order.

`

// sell appends an order from time to time, and prints what has become of them.
func sell(ctx context.Context, db *sql.DB, events *storepostgres.Store) error {
	for n := 1; ctx.Err() == nil; n++ {
		cents := 100 * n
		if n == 3 {
			cents = -cents // the broken one
		}
		if err := order(ctx, db, events, n, cents); err != nil {
			return err
		}
		select {
		case <-time.After(*every):
		case <-ctx.Done():
			return nil
		}
		var orders, sum, parcels int
		err := db.QueryRowContext(ctx, `SELECT orders, cents, (SELECT count(*) FROM parcels) FROM totals`).Scan(&orders, &sum, &parcels)
		if err != nil {
			return err
		}
		fmt.Printf("order %d: %d cents. totals_v1: %d orders, %d cents. parcels_v1: %d parcels\n", n, cents, orders, sum, parcels)
	}
	return nil
}

// order appends an event, in a transaction as any other.
func order(ctx context.Context, db *sql.DB, events *storepostgres.Store, n, cents int) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	_, err = events.Append(ctx, tx, store.NoStream(), []store.Event{{
		AggregateType: "Order", AggregateID: fmt.Sprint("order-", n),
		EventType: "OrderPlaced", EventID: uuid.New(),
		Payload: fmt.Appendf(nil, `{"cents": %d}`, cents),
	}})
	if err != nil {
		return err
	}
	return tx.Commit()
}
