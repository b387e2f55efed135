// Command rebuild replaces a read model that has a mistake, without a pause for its readers. The
// next version handles the log beside the first, is compared with it, and takes over.
//
//	go run ./examples/rebuild
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
	"github.com/pgfrontier/worker/ops"
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

// Order is the payload of events.
type Order struct {
	Customer string `json:"customer"`
	Cents    int    `json:"cents"`
}

// Customers is a version of the read model. Versions have tables of their own, and readers use a
// view. The code of both is deployed until the next one has taken over.
type Customers struct {
	version int
}

func (c Customers) Name() string             { return fmt.Sprintf("customers_v%d", c.version) } // and that of its table
func (c Customers) AggregateTypes() []string { return []string{"Order"} }

// Projection returns the name that all versions share. A version that finds another in use begins
// as a shadow.
func (Customers) Projection() string { return "customers" }

func (c Customers) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	var o Order
	if err := json.Unmarshal(e.Payload, &o); err != nil {
		return fmt.Errorf("payload of %s: %w", e.EventType, err)
	}
	if e.EventType == "OrderCancelled" {
		if c.version == 1 {
			return nil // the mistake
		}
		o.Cents = -o.Cents
	}
	// For a shadow, Replay is set, so only the version in use sends mails. Real mails are jobs: see
	// examples/mailer.
	if of, _ := consumer.Info(ctx); !of.Replay {
		fmt.Printf("  %s sends a mail to %s: %s\n", c.Name(), o.Customer, e.EventType)
	}
	_, err := tx.ExecContext(ctx, `
		INSERT INTO `+c.Name()+` AS c (name, cents) VALUES ($1::text, $2::int)
		ON CONFLICT (name) DO UPDATE SET cents = c.cents + excluded.cents`, o.Customer, o.Cents)
	return err
}

// prepare creates the table of a version. In a program of yours, this is a migration.
func (c Customers) prepare(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `CREATE TABLE `+c.Name()+` (name TEXT PRIMARY KEY, cents INT NOT NULL)`)
	return err
}

// view lets readers use a version.
func (c Customers) view(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `CREATE OR REPLACE VIEW customers AS SELECT name, cents FROM `+c.Name())
	return err
}

// shop is what the steps below need.
type shop struct {
	db       *sql.DB
	events   *storepostgres.Store
	operator *ops.Operator
	by       ops.By
}

func run(ctx context.Context, db *sql.DB) error {
	if err := migrations.Apply(ctx, db, nil); err != nil {
		return err
	}
	operator, err := ops.New(db)
	if err != nil {
		return err
	}
	s := shop{db, storepostgres.NewStore(storepostgres.DefaultStoreConfig()), operator, ops.By{Operator: "ann", Reason: "customers_v1 ignores cancelled orders"}}
	if err := s.inTx(ctx, Customers{1}.prepare); err != nil {
		return err
	}
	if err := s.inTx(ctx, Customers{1}.view); err != nil {
		return err
	}
	fmt.Println("customers_v1 is deployed:")
	if err := s.deploy(ctx, s.first, Customers{1}); err != nil {
		return err
	}
	if err := s.inTx(ctx, Customers{2}.prepare); err != nil {
		return err
	}
	fmt.Println("Both are deployed:")
	if err := s.deploy(ctx, s.takeOver, Customers{1}, Customers{2}); err != nil {
		return err
	}
	fmt.Println("Only customers_v2 is deployed:")
	return s.deploy(ctx, s.last, Customers{2})
}

// first places two orders and cancels one.
func (s *shop) first(ctx context.Context, w *worker.Worker) error {
	err := s.append(ctx, w, "order-1", "OrderPlaced", Order{"bob", 1200})
	if err == nil {
		err = s.append(ctx, w, "order-2", "OrderPlaced", Order{"cid", 100})
	}
	if err == nil {
		err = s.append(ctx, w, "order-1", "OrderCancelled", Order{"bob", 1200})
	}
	if err != nil {
		return err
	}
	return s.show(ctx)
}

// takeOver compares the versions, and lets customers_v2 take over.
func (s *shop) takeOver(ctx context.Context, w *worker.Worker) error {
	// customers_v2 handles the log from its beginning. customers_v1 sends the mail of this order.
	if err := s.append(ctx, w, "order-3", "OrderPlaced", Order{"cid", 200}); err != nil {
		return err
	}
	found, err := s.operator.Compare(ctx, ops.Comparison{
		Old: "customers_v1", OldRows: `SELECT name, cents FROM customers_v1`,
		New: "customers_v2", NewRows: `SELECT name, cents FROM customers_v2`,
	})
	if err != nil {
		return err
	}
	fmt.Printf("at position %d only customers_v1 has %v, and only customers_v2 has %v\n", found.Position, found.OnlyOld, found.OnlyNew)

	// Mails and readers change in one transaction. While both versions are deployed, the same call
	// with the names exchanged switches back.
	if err := s.operator.Switch(ctx, "customers_v1", "customers_v2", s.by, Customers{2}.view); err != nil {
		return err
	}
	if err := s.show(ctx); err != nil {
		return err
	}
	return s.append(ctx, w, "order-4", "OrderPlaced", Order{"bob", 700})
}

// last removes customers_v1.
func (s *shop) last(ctx context.Context, w *worker.Worker) error {
	if err := s.operator.Retire(ctx, "customers_v1", s.by); err != nil {
		return err
	}
	if _, err := s.db.ExecContext(ctx, `DROP TABLE customers_v1`); err != nil {
		return err
	}
	if err := s.append(ctx, w, "order-5", "OrderPlaced", Order{"bob", 300}); err != nil {
		return err
	}
	return s.show(ctx)
}

// deploy runs a worker with some versions until a step has been done.
func (s *shop) deploy(ctx context.Context, step func(context.Context, *worker.Worker) error, versions ...Customers) error {
	var consumers []consumer.Consumer
	for _, c := range versions {
		consumers = append(consumers, c)
	}
	w := worker.New(s.db, s.events, consumers)
	ended := make(chan error, 1)
	go func() { ended <- w.Start(ctx) }()
	err := step(ctx, w)
	w.Stop() // the batch in flight is finished
	return errors.Join(err, <-ended)
}

// append appends an event of an order, and waits until the version in use has handled it.
func (s *shop) append(ctx context.Context, w *worker.Worker, id, eventType string, o Order) error {
	payload, err := json.Marshal(o)
	if err != nil {
		return err
	}
	var appended store.AppendResult
	err = s.inTx(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
		appended, err = s.events.Append(ctx, tx, store.Any(), []store.Event{{
			AggregateType: "Order", AggregateID: id,
			EventType: eventType, EventID: uuid.New(), Payload: payload,
		}})
		return err
	})
	if err != nil {
		return err
	}
	return w.WaitFor(ctx, "customers", appended.GlobalPositions[0])
}

func (s *shop) inTx(ctx context.Context, do func(context.Context, *sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	if err := do(ctx, tx); err != nil {
		return err
	}
	return tx.Commit()
}

// show prints the read model.
func (s *shop) show(ctx context.Context) error {
	rows, err := s.db.QueryContext(ctx, `SELECT name, cents FROM customers ORDER BY name`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var cents int
		if err := rows.Scan(&name, &cents); err != nil {
			return err
		}
		fmt.Printf("%s: %d cents\n", name, cents)
	}
	return rows.Err()
}
