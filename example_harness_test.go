package worker_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// database makes a database with the tables of package migrations, and one more,
// for an Example.
func database(table string) (db *sql.DB, drop func()) {
	t, drop := pgtest.Example()
	d := pgtest.New(t)
	d.Exec(t, table)
	return d.DB, drop
}

// place appends an order of so many cents, as an application does.
func place(ctx context.Context, db *sql.DB, events *storepostgres.Store, cents int) (position int64) {
	tx, err := db.BeginTx(ctx, nil)
	check(err)
	appended, err := events.Append(ctx, tx, store.NoStream(), []store.Event{{
		AggregateType: "Order", AggregateID: uuid.NewString(),
		EventType: "OrderPlaced", EventID: uuid.New(),
		Payload: fmt.Appendf(nil, `{"cents": %d}`, cents),
	}})
	check(err)
	check(tx.Commit())
	return appended.GlobalPositions[0]
}

func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}
