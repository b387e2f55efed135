// Command partitions has a consumer whose handler is slow. It begins in one part, and an
// operator cuts it into eight while it runs: each event is handled once, and those of one
// customer stay in order.
//
//	go run ./examples/partitions
package main

import (
	"context"
	"database/sql"
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
	"github.com/pgfrontier/worker/migrations"
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

// Points keeps a row for each customer, whose id the events have as their aggregate's.
type Points struct{}

func (Points) Name() string { return "points_v1" }

// Partitions says how many parts there are to be, as long as no operator fixes another
// number. The key is the aggregate's id.
func (Points) Partitions() consumer.Partitions { return consumer.Partitions{Count: 1} }

// Handle is called by several goroutines and workers at once, for different customers. It
// writes rows of the event's customer only.
func (Points) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	if _, err := tx.ExecContext(ctx, `SELECT pg_sleep(0.01)`); err != nil { // is slow
		return err
	}
	var events int64
	err := tx.QueryRowContext(ctx, `
		INSERT INTO points (customer, events) VALUES ($1::text, 1)
		ON CONFLICT (customer) DO UPDATE SET events = points.events + 1 RETURNING events`, e.AggregateID).Scan(&events)
	if err == nil && events != e.AggregateVersion {
		err = fmt.Errorf("event %d of %s comes after %d others", e.AggregateVersion, e.AggregateID, events-1)
	}
	return err
}

// Forget deletes the row of a customer. A replay calls it, and Verify of package ops.
func (Points) Forget(ctx context.Context, tx *sql.Tx, _, customer string) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM points WHERE customer = $1::text`, customer)
	return err
}

const customers, eventsOfEach = 40, 30

func run(ctx context.Context, db *sql.DB) error {
	if err := migrations.Apply(ctx, db, nil); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, `CREATE TABLE points (customer TEXT PRIMARY KEY, events BIGINT NOT NULL)`); err != nil {
		return err
	}
	events := storepostgres.NewStore(storepostgres.DefaultStoreConfig())
	if err := earn(ctx, db, events); err != nil {
		return err
	}
	w := worker.New(db, events, []consumer.Consumer{Points{}}, worker.WithBatchSize(20)) // five times a second, to see it
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 2)
	go func() { ended <- w.Start(ctx) }()
	go func() { ended <- operate(ctx, db) }()
	err := <-ended // whichever ends first ends the other
	stop()
	return errors.Join(err, <-ended)
}

// operate prints how far the consumer is, and cuts it into eight parts when it has run for a second.
func operate(ctx context.Context, db *sql.DB) error {
	o, err := ops.New(db)
	if err != nil {
		return err
	}
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for ticks, handled := 0, 0; handled < customers*eventsOfEach; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		all, err := o.Consumers(ctx)
		if err != nil {
			return err
		}
		if len(all) == 0 { // no worker has run it yet
			continue
		}
		if ticks++; ticks == 4 {
			fmt.Println("an operator fixes 8 parts")
			if err := o.Partition(ctx, Points{}.Name(), 8, ops.By{Operator: "you", Reason: "points are late"}); err != nil {
				return err
			}
		}
		if err := db.QueryRowContext(ctx, `SELECT coalesce(sum(events), 0) FROM points`).Scan(&handled); err != nil {
			return err
		}
		fmt.Printf("parts: %d, events: %d of %d\n", max(1, len(all[0].Units)), handled, customers*eventsOfEach)
	}
	return nil
}

// earn appends the events, those of all customers mixed.
func earn(ctx context.Context, db *sql.DB, events store.EventStore) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	for range eventsOfEach {
		for n := range customers {
			_, err := events.Append(ctx, tx, store.Any(), []store.Event{{
				AggregateType: "Customer", AggregateID: fmt.Sprint("customer-", n),
				EventType: "PointsEarned", EventID: uuid.New(), Payload: []byte(`{}`),
			}})
			if err != nil {
				return err
			}
		}
	}
	return tx.Commit()
}
