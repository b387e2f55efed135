package consumer_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	"github.com/pgfrontier/worker/workertest"
)

// Archive copies events with COPY, which database/sql does not support.
type Archive struct{ consumer.BatchOnly }

func (Archive) Name() string { return "archive_v1" }

func (Archive) HandleBatch(ctx context.Context, _ *sql.Tx, events []store.PersistedEvent) error {
	conn, ok := consumer.Conn(ctx)
	if !ok {
		return errors.New("this is no call of a worker")
	}
	rows := make([][]any, len(events))
	for i, e := range events {
		rows[i] = []any{e.GlobalPosition, e.EventType}
	}
	return conn.Raw(func(driver any) error {
		pg := driver.(*stdlib.Conn).Conn() // in the transaction of the batch
		_, err := pg.CopyFrom(ctx, pgx.Identifier{"archive"}, []string{"position", "what"}, pgx.CopyFromRows(rows))
		return err
	})
}

// A handler uses the driver's own features through the connection of its transaction.
func ExampleConn() {
	ctx := context.Background()
	db, drop := database(`CREATE TABLE archive (position BIGINT, what TEXT)`)
	defer drop()

	events := []store.Event{event("Order", 500), event("Invoice", 500)}
	err := workertest.Handle(ctx, db, Archive{}, events, func(tx *sql.Tx) error {
		var n int
		err := tx.QueryRowContext(ctx, `SELECT count(*) FROM archive`).Scan(&n)
		fmt.Println(n, "events copied")
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: 2 events copied
}
