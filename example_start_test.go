package worker_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// Printer prints events, and writes down that it did.
type Printer struct {
	printed int
	enough  func(printed int)
}

func (*Printer) Name() string { return "printer_v1" }

func (p *Printer) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	fmt.Printf("%d: %s %s\n", e.GlobalPosition, e.EventType, e.Payload)
	p.printed++
	p.enough(p.printed)
	_, err := tx.ExecContext(ctx, `INSERT INTO printed VALUES ($1::bigint)`, e.GlobalPosition)
	return err
}

// A worker runs until its context ends, somebody calls Stop, or no retry can help.
func ExampleWorker_Start() {
	ctx := context.Background()                              // signal.NotifyContext, for a program
	db, drop := database(`CREATE TABLE printed (at BIGINT)`) // sql.Open("pgx", url)
	defer drop()
	// It waits while the database is away, and any number of processes may call it at once. Its
	// role owns the tables; leave it to a migration if the worker's role is not to.
	if err := migrations.Apply(ctx, db, nil); err != nil {
		log.Panic(err)
	}
	events := storepostgres.NewStore(storepostgres.DefaultStoreConfig())
	place(ctx, db, events, 500)
	place(ctx, db, events, 1200)

	printer := &Printer{}
	w := worker.New(db, events, []consumer.Consumer{printer})
	printer.enough = func(printed int) {
		if printed == 2 {
			w.Stop() // the batch in hand is finished first
		}
	}
	fmt.Println("error:", w.Start(ctx))
	// Output:
	// 1: OrderPlaced {"cents": 500}
	// 2: OrderPlaced {"cents": 1200}
	// error: <nil>
}
