package jobs_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
	"github.com/pgfrontier/worker/workertest"
)

// Reindex makes a search index follow a document.
type Reindex struct{ Document int }

func (Reindex) Kind() string { return "reindex" }

// One job waits for a document, however often the document changes.
func ExampleUniqueUntilStart() {
	ctx := context.Background()
	db, drop := database(``)
	defer drop()
	client := jobs.NewClient(db)

	for range 3 {
		e, err := client.Enqueue(ctx, nil, Reindex{42}, jobs.UniqueUntilStart("reindex:42"))
		check(err)
		fmt.Println(e.ID, e.Existing)
	}
	handlers := jobs.NewHandlers()
	jobs.Register(handlers, func(ctx context.Context, j *jobs.Job[Reindex]) error {
		if j.ID == 1 { // the document changes while the job runs: another job must follow
			e, err := client.Enqueue(ctx, nil, Reindex{42}, jobs.UniqueUntilStart("reindex:42"))
			check(err)
			fmt.Println("while it runs:", e.Existing)
		}
		return nil
	})
	check(workertest.Drain(ctx, db, handlers))
	all, err := workertest.Enqueued[Reindex](ctx, db)
	check(err)
	fmt.Println(len(all), "jobs ran")
	// Output:
	// 1 false
	// 1 true
	// 1 true
	// while it runs: false
	// 2 jobs ran
}

// A request that is sent again enqueues no second job, even long after its job has finished.
func ExampleOnce() {
	ctx := context.Background()
	db, drop := database(``)
	defer drop()
	client := jobs.NewClient(db)
	request := uuid.NewString() // from the header Idempotency-Key

	first, err := client.Enqueue(ctx, nil, Charge{"4711"}, jobs.Once(request, 24*time.Hour))
	check(err)
	again, err := client.Enqueue(ctx, nil, Charge{"4711"}, jobs.Once(request, 24*time.Hour))
	check(err)
	fmt.Println(again.ID == first.ID, again.Existing)
	_, err = client.Enqueue(ctx, nil, Charge{"0815"}, jobs.Once(request, 24*time.Hour))
	fmt.Println(errors.Is(err, jobs.ErrKeyReused))
	// Output:
	// true true
	// true
}

// Sum adds numbers.
type Sum struct{ Numbers []int }

func (Sum) Kind() string { return "sum" }

// A program that enqueues a job can wait for its result.
func ExampleWait() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db, drop := database(``)
	defer drop()
	handlers := jobs.NewHandlers()
	jobs.Register(handlers, func(ctx context.Context, j *jobs.Job[Sum]) error {
		if len(j.Args.Numbers) == 0 {
			return jobs.Fail(errors.New("nothing to add"))
		}
		total := 0
		for _, n := range j.Args.Numbers {
			total += n
		}
		return j.SetResult(total)
	})
	defer background(db, handlers)()

	client := jobs.NewClient(db) // WithNotifyConnectionString: Wait is notified of the end
	e, err := client.Enqueue(ctx, nil, Sum{[]int{1, 2, 3}})
	check(err)
	total, err := jobs.Wait[int](ctx, client, e.ID)
	fmt.Println(total, err)

	e, err = client.Enqueue(ctx, nil, Sum{})
	check(err)
	_, err = jobs.Wait[int](ctx, client, e.ID)
	var failed *jobs.FailedError
	fmt.Println(errors.As(err, &failed), failed.State, failed.Text)
	// Output:
	// 6 <nil>
	// true failed nothing to add
}

// Ship are the arguments of a job that follows from an order.
type Ship struct{ Order string }

func (Ship) Kind() string { return "ship" }

// Shipping is a consumer of package worker. It enqueues a job for each order.
type Shipping struct{ client *jobs.Client }

func (Shipping) Name() string { return "shipping_v1" }

func (s Shipping) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	_, err := s.client.EnqueueFor(ctx, tx, e, Ship{e.AggregateID})
	return err
}

// An event becomes a job exactly once. The job is enqueued in the transaction that moves the
// consumer's checkpoint. It is not enqueued again when the consumer is reset.
func ExampleClient_EnqueueFor() {
	ctx := context.Background()
	db, drop := database(``)
	defer drop()
	events := storepostgres.NewStore(storepostgres.DefaultStoreConfig())
	tx, err := db.BeginTx(ctx, nil)
	check(err)
	_, err = events.Append(ctx, tx, store.NoStream(), []store.Event{{
		AggregateType: "Order", AggregateID: "order-1", EventType: "OrderPlaced", EventID: uuid.New(), Payload: []byte(`{}`),
	}})
	check(err)
	check(tx.Commit())

	// worker.New(...).Start, in a program
	consumers := []consumer.Consumer{Shipping{jobs.NewClient(db)}}
	check(workertest.CatchUp(ctx, db, events, consumers))
	_, err = db.ExecContext(ctx, `DELETE FROM consumer_checkpoints`) // the consumer begins again, as after a reset
	check(err)
	check(workertest.CatchUp(ctx, db, events, consumers))

	all, err := workertest.Enqueued[Ship](ctx, db)
	check(err)
	fmt.Println(len(all), "job:", all[0].Args.Order)
	// Output: 1 job: order-1
}
