package ops_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
	"github.com/pgfrontier/worker/workertest"
)

// Shipping cannot handle an order without a customer.
type Shipping struct{}

func (Shipping) Name() string { return "shipping_v1" }

func (Shipping) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	if e.AggregateID == "4711" {
		return errors.New("the order has no customer")
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO shipped VALUES ($1::text)`, e.AggregateID)
	return err
}

// A consumer is stuck at an event. An operator lets it continue without the event.
func ExampleOperator_SkipEvent() {
	ctx := context.Background()
	t, drop := pgtest.Example()
	defer drop()
	d := pgtest.New(t)
	d.Exec(t, `CREATE TABLE shipped (id TEXT)`)
	eventStore := storepostgres.NewStore(storepostgres.DefaultStoreConfig())
	appendOrders(ctx, d.DB, eventStore, "4710", "4711", "4712")

	// A worker commits the events before it, tries the event once more, and stops.
	err := workertest.CatchUp(ctx, d.DB, eventStore, []consumer.Consumer{Shipping{}}, worker.WithMaxConsecutiveFailures(2))
	var stuck *worker.ConsumerError
	if !errors.As(err, &stuck) {
		log.Panic(err)
	}
	fmt.Println(stuck.Consumer, "is stuck at position", stuck.Position)

	o, err := ops.New(d.DB)
	check(err)
	check(o.SkipEvent(ctx, stuck.Consumer, stuck.Position, ops.By{Operator: "ann", Reason: "order 4711 has no customer"}))
	check(workertest.CatchUp(ctx, d.DB, eventStore, []consumer.Consumer{Shipping{}}))

	consumers, err := o.Consumers(ctx)
	check(err)
	fmt.Println(consumers[0].Name, "is at position", consumers[0].Position)
	operations, err := o.Operations(ctx, ops.OperationFilter{Consumer: "shipping_v1"}, 10)
	check(err)
	for _, op := range operations {
		fmt.Printf("%s by %s: %s\n", op.Kind, op.By.Operator, op.By.Reason)
	}
	// Output:
	// shipping_v1 is stuck at position 2
	// shipping_v1 is at position 3
	// skip by ann: order 4711 has no customer
}

// An operator previews a change. The change is refused if the consumer has changed since.
func ExampleOperator_Preview() {
	ctx := context.Background()
	t, drop := pgtest.Example()
	defer drop()
	d := pgtest.New(t)
	d.Exec(t, `CREATE TABLE shipped (id TEXT)`)
	eventStore := storepostgres.NewStore(storepostgres.DefaultStoreConfig())
	appendOrders(ctx, d.DB, eventStore, "4710", "4712")
	check(workertest.CatchUp(ctx, d.DB, eventStore, []consumer.Consumer{Shipping{}}))

	o, err := ops.New(d.DB)
	check(err)
	by := ops.By{Operator: "ann", Reason: "ship again"}
	all, err := o.Consumers(ctx)
	check(err)
	seen := all[0]
	would, err := o.Preview(func(o *ops.Operator) error { return o.Reset(ctx, seen.Name, 0, by) })
	check(err)
	fmt.Println(would[0].Kind, string(would[0].Detail))

	check(o.Pause(ctx, seen.Name, by)) // another operator changes it first
	fmt.Println(o.IfRevision(seen.Revision).Reset(ctx, seen.Name, 0, by) != nil)
	// Output:
	// reset {"to": 0, "from": 2, "events_again": 2, "dead_letters_deleted": 0, "open_ranges_forgotten": 0}
	// true
}

// appendOrders appends an event of each order, as an application does.
func appendOrders(ctx context.Context, db *sql.DB, eventStore *storepostgres.Store, orders ...string) {
	for _, id := range orders {
		tx, err := db.BeginTx(ctx, nil)
		check(err)
		_, err = eventStore.Append(ctx, tx, store.NoStream(), []store.Event{{AggregateType: "Order", AggregateID: id, EventType: "OrderPlaced", EventID: uuid.New()}})
		check(err)
		check(tx.Commit())
	}
}

func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}

// Invoices keeps a row for each order, and sends a mail.
type Invoices struct{ vat string }

func (Invoices) Name() string { return "invoices_v1" }

func (i Invoices) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	if of, _ := consumer.Info(ctx); !of.Replay {
		fmt.Println("mail for order", e.AggregateID)
	}
	fmt.Println("invoice for order", e.AggregateID, "with", i.vat)
	_, err := tx.ExecContext(ctx, `INSERT INTO invoices VALUES ($1::text)`, e.AggregateID)
	return err
}

// Forget deletes the invoice of an order.
func (Invoices) Forget(ctx context.Context, tx *sql.Tx, _, order string) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM invoices WHERE id = $1::text`, order)
	return err
}

// The invoice of one order was wrong. With the corrected code, the order's events are handled
// again, and no mail is sent twice.
func ExampleOperator_Replay() {
	ctx := context.Background()
	t, drop := pgtest.Example()
	defer drop()
	d := pgtest.New(t)
	d.Exec(t, `CREATE TABLE invoices (id TEXT PRIMARY KEY)`)
	eventStore := storepostgres.NewStore(storepostgres.DefaultStoreConfig())
	appendOrders(ctx, d.DB, eventStore, "4710", "4711")
	check(workertest.CatchUp(ctx, d.DB, eventStore, []consumer.Consumer{Invoices{"19 %"}}))

	o, err := ops.New(d.DB)
	check(err)
	check(o.Replay(ctx, "invoices_v1", "Order", "4711", ops.By{Operator: "ann", Reason: "order 4711 has another rate"}))
	check(workertest.CatchUp(ctx, d.DB, eventStore, []consumer.Consumer{Invoices{"7 %"}}))
	// Output:
	// mail for order 4710
	// invoice for order 4710 with 19 %
	// mail for order 4711
	// invoice for order 4711 with 19 %
	// invoice for order 4711 with 7 %
}
