package table_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs/table"
)

// ExampleJob is the record of a row of example_jobs and its view.
type ExampleJob struct {
	ID             int
	RepositoryID   int
	RepositoryName string
}

func scanExampleJob(row table.Row) (job ExampleJob, err error) {
	err = row.Scan(&job.ID, &job.RepositoryID, &job.RepositoryName)
	return job, err
}

var exampleJobColumns = []string{"j.id", "j.repository_id", "j.repository_name"}

// database makes a database with the table of the manual, for an Example.
func database() (db *sql.DB, drop func()) {
	t, drop := pgtest.Example()
	d := pgtest.Empty(t)
	_, err := d.OpenPQ(t).ExecContext(context.Background(), schema)
	check(err)
	return d.DB, drop
}

func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}

// Jobs are rows of a table. Any process inserts them, any worker runs them.
func Example() {
	ctx := context.Background()
	db, drop := database() // sql.Open("pgx", url), with your tables
	defer drop()

	store := table.NewStore(db, table.Options[ExampleJob]{
		TableName:         "example_jobs j",
		ViewName:          "example_jobs_with_repository_name j",
		ColumnExpressions: exampleJobColumns,
		Scan:              scanExampleJob,
		OrderByExpression: "j.repository_id, j.id",
		MaxNumResets:      5,
		StalledMaxAge:     5 * time.Second,
	})
	_, err := db.ExecContext(ctx, `INSERT INTO example_jobs (repository_id) VALUES (7), (3)`)
	check(err)

	worker := table.NewWorker(store, table.Handler[ExampleJob]{
		Handle: func(ctx context.Context, j *table.Job[ExampleJob]) error {
			fmt.Println("indexing", j.Record.RepositoryName)
			return nil // completes the job
		},
	}, table.WorkerOptions{
		NumHandlers:  1,           // process only one job at a time (per process)
		Interval:     time.Second, // poll for jobs once per second
		NumTotalJobs: 2,           // this example needs two jobs only
	})
	fmt.Println("error:", worker.Start(ctx))
	n, err := store.CountByState(ctx, table.StateCompleted)
	fmt.Println(n, "completed", err)
	// Output:
	// indexing repo 3
	// indexing repo 7
	// error: <nil>
	// 2 completed <nil>
}

// The writes of a handler's transaction and the end of its job are one: both are committed, or
// neither.
func ExampleJob_CompleteTx() {
	ctx := context.Background()
	db, drop := database()
	defer drop()
	_, err := db.ExecContext(ctx, `CREATE TABLE indexed (repository text)`)
	check(err)
	_, err = db.ExecContext(ctx, `INSERT INTO example_jobs (repository_id) VALUES (3)`)
	check(err)

	handle := func(ctx context.Context, j *table.Job[ExampleJob]) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // a no-op after the commit
		if _, err := tx.ExecContext(ctx, `INSERT INTO indexed VALUES ($1)`, j.Record.RepositoryName); err != nil {
			return err
		}
		if j.NumFailures == 0 {
			return errors.New("not yet") // rolls the INSERT back
		}
		if err := j.CompleteTx(ctx, tx); err != nil {
			return err
		}
		return tx.Commit()
	}
	store := table.NewStore(db, table.Options[ExampleJob]{
		TableName: "example_jobs j", ViewName: "example_jobs_with_repository_name j",
		ColumnExpressions: exampleJobColumns, Scan: scanExampleJob,
		MaxNumRetries: 3, RetryAfter: time.Millisecond,
	})
	check(table.NewWorker(store, table.Handler[ExampleJob]{Handle: handle}, table.WorkerOptions{NumTotalJobs: 2, Interval: 10 * time.Millisecond}).Start(ctx))
	var n int
	check(db.QueryRowContext(ctx, `SELECT count(*) FROM indexed`).Scan(&n))
	fmt.Println("indexed:", n)
	// Output: indexed: 1
}

// With a budget, the jobs that run at once need no more memory than there is. Jobs that need more
// than is left are not claimed; smaller jobs behind them are.
func ExampleHandler() {
	ctx := context.Background()
	db, drop := database()
	defer drop()
	_, err := db.ExecContext(ctx, `INSERT INTO example_jobs (repository_id) VALUES (12), (3), (8), (2)`) // gigabytes, here
	check(err)

	budget := &budget{left: 10}
	store := table.NewStore(db, table.Options[ExampleJob]{
		TableName: "example_jobs j", ViewName: "example_jobs_with_repository_name j",
		ColumnExpressions: exampleJobColumns, Scan: scanExampleJob,
	})
	worker := table.NewWorker(store, table.Handler[ExampleJob]{
		PreDequeue: func(context.Context) (bool, table.Condition, error) {
			return true, table.Condition{SQL: "j.repository_id <= $1", Args: []any{budget.add(0)}}, nil
		},
		PreHandle:  func(_ context.Context, j *table.Job[ExampleJob]) { budget.add(-j.Record.RepositoryID) },
		Handle:     func(context.Context, *table.Job[ExampleJob]) error { return nil },
		PostHandle: func(_ context.Context, j *table.Job[ExampleJob]) { budget.add(j.Record.RepositoryID) },
	}, table.WorkerOptions{NumHandlers: 4, NumTotalJobs: 3})
	check(worker.Start(ctx))
	for _, state := range []table.State{table.StateCompleted, table.StateQueued} {
		n, err := store.CountByState(ctx, state)
		check(err)
		fmt.Println(n, state)
	}
	// Output:
	// 3 completed
	// 1 queued
}

// budget is the memory that a process may use.
type budget struct {
	mu   sync.Mutex
	left int
}

func (b *budget) add(n int) (left int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += n
	return b.left
}
