package worker_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// Worth is a projection: what all orders are worth.
type Worth struct{}

func (Worth) Name() string { return "worth_v1" }

func (Worth) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	_, err := tx.ExecContext(ctx, `UPDATE worth SET cents = cents + ($1::jsonb->>'cents')::int`, string(e.Payload))
	return err
}

// An application reads its own writes: it waits until the projection has them.
func ExampleWorker_WaitFor() {
	ctx := context.Background()
	db, drop := database(`CREATE TABLE worth AS SELECT 0 AS cents`)
	defer drop()
	events := storepostgres.NewStore(storepostgres.DefaultStoreConfig())
	w := worker.New(db, events, []consumer.Consumer{Worth{}})
	ended := make(chan error, 1)
	go func() { ended <- w.Start(ctx) }()

	position := place(ctx, db, events, 500)
	check(w.WaitFor(ctx, "worth_v1", position)) // give ctx a deadline, in a program

	var cents int
	check(db.QueryRowContext(ctx, `SELECT cents FROM worth`).Scan(&cents))
	fmt.Println("all orders:", cents, "cents")
	w.Stop()
	check(<-ended)
	// Output: all orders: 500 cents
}
