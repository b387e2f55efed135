package workertest_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/workertest"
)

// Pay records a payment, and then enqueues a receipt.
type Pay struct{ Cents int }

func (Pay) Kind() string { return "pay" }

type Receipt struct{ Cents int }

func (Receipt) Kind() string { return "receipt" }

// handlers returns the handlers under test.
func handlers(client *jobs.Client) *jobs.Handlers {
	h := jobs.NewHandlers()
	jobs.RegisterTx(h, func(ctx context.Context, tx *sql.Tx, j *jobs.Job[Pay]) error {
		if j.Args.Cents <= 0 {
			return jobs.Fail(fmt.Errorf("cannot record %d cents", j.Args.Cents))
		}
		if _, err := tx.ExecContext(ctx, `UPDATE totals SET cents = cents + $1::int`, j.Args.Cents); err != nil {
			return err
		}
		_, err := client.Enqueue(ctx, tx, Receipt(j.Args))
		return err
	})
	jobs.Register(h, func(_ context.Context, j *jobs.Job[Receipt]) error {
		fmt.Println("receipt for", j.Args.Cents, "cents")
		return nil
	})
	return h
}

// jobsDatabase creates a database with the tables of jobs.
func jobsDatabase() (db *sql.DB, drop func()) {
	t, drop := pgtest.Example()
	d := pgtest.Empty(t)
	d.Exec(t, `CREATE TABLE totals AS SELECT 0 AS cents`)
	if err := migrations.ApplyJobs(context.Background(), d.DB, nil); err != nil {
		log.Panic(err)
	}
	return d.DB, drop
}

// One handler is called with given arguments, and the database is unchanged afterwards.
func ExampleHandleJob() {
	ctx := context.Background() // t.Context(), in a test
	db, drop := jobsDatabase()
	defer drop()
	h := handlers(jobs.NewClient(db))

	out, err := workertest.HandleJob(ctx, db, h, Pay{500}, func(tx *sql.Tx) error {
		receipts, err := workertest.Enqueued[Receipt](ctx, tx)
		fmt.Println("receipts enqueued:", len(receipts))
		if err != nil {
			return err
		}
		return expectTotal(ctx, tx, 500)
	})
	fmt.Println(out.State, err)
	fmt.Println("rolled back:", expectTotal(ctx, db, 0))
	out, err = workertest.HandleJob(ctx, db, h, Pay{-1}, nil)
	fmt.Println(out.State, err)
	// Output:
	// receipts enqueued: 1
	// completed <nil>
	// rolled back: <nil>
	// failed cannot record -1 cents
}

// A worker runs all due jobs, and the jobs that they enqueue.
func ExampleDrain() {
	ctx := context.Background() // with a deadline, in a test
	db, drop := jobsDatabase()
	defer drop()
	client := jobs.NewClient(db)
	if _, err := client.Enqueue(ctx, nil, Pay{500}); err != nil {
		log.Panic(err)
	}

	fmt.Println("drained:", workertest.Drain(ctx, db, handlers(client)))
	fmt.Println("as expected:", expectTotal(ctx, db, 500))
	// Output:
	// receipt for 500 cents
	// drained: <nil>
	// as expected: <nil>
}
