package jobs_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/workertest"
)

// Transfer moves money between two accounts.
type Transfer struct {
	From, To string
	Cents    int
}

func (Transfer) Kind() string { return "transfer" }

// The writes of the handler and the end of the job are one transaction. Whatever crashes in
// between, the money is moved once.
func ExampleRegisterTx() {
	ctx := context.Background()
	db, drop := database(`CREATE TABLE accounts AS SELECT name, 1000 AS cents FROM unnest('{a,b}'::text[]) AS name`)
	defer drop()
	_, err := jobs.NewClient(db).Enqueue(ctx, nil, Transfer{"a", "b", 300})
	check(err)

	handlers := jobs.NewHandlers()
	jobs.RegisterTx(handlers, func(ctx context.Context, tx *sql.Tx, j *jobs.Job[Transfer]) error {
		_, err := tx.ExecContext(ctx, `UPDATE accounts SET cents = cents + CASE name WHEN $1 THEN -$3::int ELSE $3::int END WHERE name IN ($1, $2)`,
			j.Args.From, j.Args.To, j.Args.Cents)
		if err == nil && j.Attempt == 1 {
			err = errors.New("the first attempt fails") // its writes are rolled back
		}
		return err
	}, jobs.Retry(jobs.Fixed(0)))

	check(workertest.Drain(ctx, db, handlers)) // a program calls NewWorker and Start
	var balance string
	check(db.QueryRowContext(ctx, `SELECT string_agg(name || ' has ' || cents, ', ' ORDER BY name) FROM accounts`).Scan(&balance))
	fmt.Println(balance)
	// Output: a has 700, b has 1300
}

// Ping are the arguments of a job with many instances.
type Ping struct{ Host string }

func (Ping) Kind() string { return "ping" }

// A batch handler takes the jobs that were claimed together. Settle gives one job an outcome of its
// own.
func ExampleRegisterBatch() {
	ctx := context.Background()
	db, drop := database(``)
	defer drop()
	client := jobs.NewClient(db)
	all, err := client.EnqueueMany(ctx, nil, []jobs.EnqueueParams{{Args: Ping{"a"}}, {Args: Ping{""}}, {Args: Ping{"c"}}})
	check(err)

	handlers := jobs.NewHandlers()
	jobs.RegisterBatch(handlers, func(ctx context.Context, all []*jobs.Job[Ping]) error {
		fmt.Println(len(all), "at once")
		for _, j := range all {
			if j.Args.Host == "" {
				j.Settle(jobs.Fail(errors.New("no host")))
			}
		}
		return nil // completes the other jobs
	}, jobs.BatchSize(500))
	fmt.Println(workertest.Drain(ctx, db, handlers))
	for _, e := range all {
		info, err := client.Get(ctx, e.ID)
		check(err)
		fmt.Println(e.ID, info.State)
	}
	// Output:
	// 3 at once
	// workertest: job 2 of kind "ping": no host
	// 1 completed
	// 2 failed
	// 3 completed
}

// PaymentError is an error with a code. The options of a registration use the code to decide about
// retries.
type PaymentError struct{ code string }

func (e *PaymentError) Error() string { return "the bank says " + e.code }
func (e *PaymentError) Code() string  { return e.code }

// Charge are the arguments of a job that may fail.
type Charge struct{ Card string }

func (Charge) Kind() string { return "charge" }

// An error is retried after a pause that grows. A code can be terminal, and so can a single error.
func ExampleRetry() {
	ctx := context.Background()
	db, drop := database(``)
	defer drop()
	client := jobs.NewClient(db)

	handlers := jobs.NewHandlers()
	jobs.Register(handlers, func(ctx context.Context, j *jobs.Job[Charge]) error {
		switch j.Args.Card {
		case "stolen":
			return &PaymentError{"DECLINED"} // terminal, by its code
		case "":
			return jobs.Fail(errors.New("no card")) // terminal, whatever its code
		case "busy":
			return jobs.RetryAfter(time.Hour, errors.New("the bank asks for an hour"))
		case "closed":
			return jobs.Snooze(8 * time.Hour) // no failure: the bank opens at nine
		}
		return &PaymentError{"NO_ANSWER"} // retried, ten times
	}, jobs.Retry(jobs.Exponential(time.Minute, 24*time.Hour)), jobs.MaxAttempts(10), jobs.Terminal("DECLINED", "EXPIRED"))

	for _, card := range []string{"stolen", "", "busy", "closed", "good"} {
		e, err := client.Enqueue(ctx, nil, Charge{card})
		check(err)
		_ = workertest.Drain(ctx, db, handlers) // the errors are the point of this example
		info, err := client.Get(ctx, e.ID)
		check(err)
		fmt.Printf("%q: %s, failures: %d, code: %q\n", card, info.State, info.Failures, info.Code)
	}
	// Output:
	// "stolen": failed, failures: 1, code: "DECLINED"
	// "": failed, failures: 1, code: ""
	// "busy": available, failures: 1, code: ""
	// "closed": available, failures: 0, code: ""
	// "good": available, failures: 1, code: "NO_ANSWER"
}
