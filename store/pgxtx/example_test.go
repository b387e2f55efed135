package pgxtx_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/store/pgxtx"
)

// An application on a pool of pgx writes a row of its own and enqueues a job: both, or none.
func ExampleDo() {
	ctx := context.Background()
	t, drop := pgtest.Example()
	defer drop()
	d := pgtest.Jobs(t)
	pool, err := pgxpool.New(ctx, d.URL)
	if err != nil {
		log.Panic(err)
	}
	defer pool.Close()
	client := jobs.NewClient(d.DB)

	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `CREATE TABLE orders AS SELECT 4711 AS id`); err != nil {
			return err
		}
		return pgxtx.Do(tx, func(tx *sql.Tx) error {
			_, err := client.Enqueue(ctx, tx, mail{To: "ann"})
			return err
		})
	})
	if err != nil {
		log.Panic(err)
	}
	var orders, enqueued int
	err = pool.QueryRow(ctx, `SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM jobs)`).Scan(&orders, &enqueued)
	fmt.Println(orders, enqueued, err)
	// Output: 1 1 <nil>
}
