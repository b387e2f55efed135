package workertest_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	"github.com/pgfrontier/worker/workertest"
)

// Totals is the projection under test.
type Totals struct{}

func (Totals) Name() string { return "totals_v1" }

func (Totals) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	_, err := tx.ExecContext(ctx, `UPDATE totals SET cents = cents + ($1::jsonb->>'cents')::int`, string(e.Payload))
	return err
}

// database creates a database with the projection's table.
func database() (db *sql.DB, drop func()) {
	t, drop := pgtest.Example()
	d := pgtest.New(t)
	d.Exec(t, `CREATE TABLE totals AS SELECT 0 AS cents`)
	return d.DB, drop
}

// expectTotal compares the projection's total.
func expectTotal(ctx context.Context, q store.Querier, want int) error {
	var cents int
	if err := q.QueryRowContext(ctx, `SELECT cents FROM totals`).Scan(&cents); err != nil {
		return err
	}
	if cents != want {
		return fmt.Errorf("the total is %d cents, want %d", cents, want)
	}
	return nil
}

// The events are in no log, and the database is unchanged afterwards.
func ExampleHandle() {
	ctx := context.Background() // t.Context(), in a test
	db, drop := database()
	defer drop()

	events := []store.Event{{AggregateType: "Order", AggregateID: "order-1", EventType: "OrderPlaced", Payload: []byte(`{"cents": 500}`)}}
	err := workertest.Handle(ctx, db, Totals{}, events, func(tx *sql.Tx) error { return expectTotal(ctx, tx, 500) })
	fmt.Println("handled:", err)
	fmt.Println("rolled back:", expectTotal(ctx, db, 0))
	err = workertest.Handle(ctx, db, Totals{}, events, func(tx *sql.Tx) error { return expectTotal(ctx, tx, 400) })
	fmt.Println("a wrong test:", err)
	// Output:
	// handled: <nil>
	// rolled back: <nil>
	// a wrong test: the total is 500 cents, want 400
}

// A worker handles all events that were appended.
func ExampleCatchUp() {
	ctx := context.Background() // with a deadline, in a test
	db, drop := database()
	defer drop()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Panic(err)
	}
	placed := event("Order", "order-1")
	placed.Payload = []byte(`{"cents": 500}`)
	if _, err := newStore().Append(ctx, tx, store.NoStream(), []store.Event{placed}); err != nil {
		log.Panic(err)
	}
	if err := tx.Commit(); err != nil {
		log.Panic(err)
	}

	err = workertest.CatchUp(ctx, db, newStore(), []consumer.Consumer{Totals{}})
	fmt.Println("caught up:", err)
	fmt.Println("as expected:", expectTotal(ctx, db, 500))
	// Output:
	// caught up: <nil>
	// as expected: <nil>
}

// Cached keeps its total in memory, which is a mistake.
type Cached struct{ cents int }

func (*Cached) Name() string { return "cached_v1" }

func (c *Cached) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	c.cents += 100
	_, err := tx.ExecContext(ctx, `UPDATE totals SET cents = $1::int`, c.cents)
	return err
}

// Faults do not change what a correct consumer writes. The error for another one names the cause.
func ExampleStorm() {
	ctx := context.Background() // t.Context(), in a test
	var o workertest.StormOptions
	o.Seed = 1 // leave it out in a test, to have other faults in each run
	o.Model = []string{`SELECT cents FROM totals`}
	for i := range 40 {
		placed := event("Order", fmt.Sprint("order-", i%10))
		placed.Payload = []byte(`{"cents": 100}`)
		o.Events = append(o.Events, placed)
	}
	for _, create := range []func() consumer.Consumer{
		func() consumer.Consumer { return Totals{} },
		func() consumer.Consumer { return new(Cached) },
	} {
		db, drop := database()
		fmt.Println(workertest.Storm(ctx, db, newStore(), create, o))
		drop()
	}
	// Output:
	// <nil>
	// workertest: Storm of consumer "cached_v1" with Seed 1: a run with rollbacks and restarts differs from the first: Model[0]: missing {"cents":4000}, unexpected {"cents":800}: the consumer keeps state in memory, which a rollback does not undo and a restart loses, or depends on the size of batches: read the state through tx
}
