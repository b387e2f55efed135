// Command mailer sends a mail for each order. A consumer enqueues a job for the event, in
// the transaction that moves on from the event. The job sends the mail, and is tried again
// until the provider has taken it. The key of the event sees to it that one mail is sent.
//
//	go run ./examples/mailer
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/examples/internal/database"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := database.With(ctx, run); err != nil {
		log.Fatal(err)
	}
}

// Receipt is a mail to be sent: the arguments of a job.
type Receipt struct {
	Key  uuid.UUID `json:"key"` // of the event
	Mail Mail      `json:"mail"`
}

func (Receipt) Kind() string { return "receipt" }

// Receipts enqueues a Receipt for each order. It sends nothing itself: its transaction is
// not to wait for a mail provider.
type Receipts struct{ client *jobs.Client }

func (Receipts) Name() string             { return "receipts_v1" }
func (Receipts) AggregateTypes() []string { return []string{"Order"} }

func (r Receipts) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	var order struct{ Customer string }
	if err := json.Unmarshal(e.Payload, &order); err != nil {
		return err
	}
	_, err := r.client.EnqueueFor(ctx, tx, e, Receipt{Key: e.EventID, Mail: Mail{To: order.Customer, Text: "Thank you!"}})
	return err
}

func run(ctx context.Context, db *sql.DB) error {
	if err := errors.Join(migrations.Apply(ctx, db, nil), migrations.ApplyJobs(ctx, db, nil)); err != nil {
		return err
	}
	provider, closeProvider, err := startProvider()
	if err != nil {
		return err
	}
	defer closeProvider()

	handlers := jobs.NewHandlers()
	jobs.Register(handlers, func(ctx context.Context, j *jobs.Job[Receipt]) error {
		return send(ctx, provider, j.Args) // an error is stored with the job, which is tried again
	}, jobs.Timeout(10*time.Second), jobs.Retry(jobs.Fixed(500*time.Millisecond))) // without Retry, pauses grow up to a day

	sent := make(chan struct{}, 10)
	mailer := jobs.NewWorker(db, handlers,
		jobs.WithQueue(jobs.DefaultQueue, 1), // one at a time here, hundreds in a program of yours
		jobs.WithPollInterval(100*time.Millisecond),
		jobs.WithObserver(observe.On(func(d observe.JobDone) {
			if d.State == string(jobs.StateCompleted) {
				sent <- struct{}{}
			}
		})))
	events := storepostgres.NewStore(storepostgres.DefaultStoreConfig())
	receipts := worker.New(db, events, []consumer.Consumer{Receipts{jobs.NewClient(db)}})

	if err := place(ctx, db, events, "ann", "bob", "cid"); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 3)
	go func() { ended <- mailer.Start(ctx) }()
	go func() { ended <- receipts.Start(ctx) }()
	go func() { ended <- story(ctx, db, events, sent) }()
	err = <-ended // whichever ends first ends the others
	stop()
	return errors.Join(err, <-ended, <-ended)
}

// story waits for the mails. Then it makes the consumer handle all events again, and places
// one more order: only for that one a mail is sent.
func story(ctx context.Context, db *sql.DB, events store.EventStore, sent <-chan struct{}) error {
	if err := await(ctx, sent, 3); err != nil {
		return err
	}
	o, err := ops.New(db)
	if err != nil {
		return err
	}
	if err := o.Reset(ctx, Receipts{}.Name(), 0, ops.By{Operator: "you", Reason: "to see that nothing is sent twice"}); err != nil {
		return err
	}
	fmt.Println("the consumer begins again, and dan orders")
	if err := place(ctx, db, events, "dan"); err != nil {
		return err
	}
	return await(ctx, sent, 1)
}

func await(ctx context.Context, sent <-chan struct{}, mails int) error {
	for range mails {
		select {
		case <-sent:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// place appends an order of each customer.
func place(ctx context.Context, db *sql.DB, events store.EventStore, customers ...string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	for _, c := range customers {
		payload, err := json.Marshal(map[string]string{"customer": c})
		if err != nil {
			return err
		}
		_, err = events.Append(ctx, tx, store.NoStream(), []store.Event{{
			AggregateType: "Order", AggregateID: uuid.NewString(),
			EventType: "OrderPlaced", EventID: uuid.New(), Payload: payload,
		}})
		if err != nil {
			return err
		}
	}
	return tx.Commit()
}
