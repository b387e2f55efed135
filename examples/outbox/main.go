// Command outbox publishes what happens in a database to a message broker: in order, at
// least once, and nothing that was rolled back.
//
//	go run ./examples/outbox
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
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/examples/internal/database"
	"github.com/pgfrontier/worker/migrations"
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

// Message is what the broker is given.
type Message struct {
	ID      string // the same each time that the message is sent: NATS takes it as Nats-Msg-Id
	Key     string // messages of one key stay in order: Kafka takes it as the record's key
	Subject string
	Body    []byte
}

// Broker is what an outbox needs of NATS, Kafka or RabbitMQ.
type Broker interface {
	// Publish returns nil once the broker has stored the message.
	Publish(ctx context.Context, m Message) error
}

// Outbox publishes the events of accounts, one after the other. If the answer of the broker
// or the commit is lost, an event is published again: with the same ID, and before any later one.
type Outbox struct{ broker Broker }

func (Outbox) Name() string             { return "outbox_v1" }
func (Outbox) AggregateTypes() []string { return []string{"Account"} }

func (o Outbox) Handle(ctx context.Context, _ *sql.Tx, e store.PersistedEvent) error {
	return o.broker.Publish(ctx, Message{
		ID: e.EventID.String(), Key: e.AggregateID,
		Subject: "accounts." + e.EventType, Body: e.Payload,
	})
}

func run(ctx context.Context, db *sql.DB) error {
	if err := migrations.Apply(ctx, db, nil); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, `
		CREATE TABLE accounts (owner TEXT PRIMARY KEY, cents INT NOT NULL CHECK (cents >= 0));
		INSERT INTO accounts VALUES ('ann', 0)`); err != nil {
		return err
	}
	events := storepostgres.NewStore(storepostgres.DefaultStoreConfig())
	var last int64
	for _, cents := range []int{1000, -300, -9900, 50} {
		position, err := book(ctx, db, events, "ann", cents)
		switch {
		case overdrawn(err):
			fmt.Printf("a booking of %d cents is rolled back\n", cents)
		case err != nil:
			return err
		default:
			last = position
		}
	}

	w := worker.New(db, events, []consumer.Consumer{Outbox{&Memory{known: map[string]bool{}}}},
		worker.WithMaxConsecutiveFailures(1_000_000),  // a broker may be away for long
		worker.WithPollInterval(100*time.Millisecond), // the first pause between two tries
		worker.WithMaxPollInterval(10*time.Second))    // the longest one
	ended := make(chan error, 1)
	go func() { ended <- w.Start(ctx) }() // a program of yours: return w.Start(ctx)
	err := w.WaitFor(ctx, Outbox{}.Name(), last)
	w.Stop()
	return errors.Join(err, <-ended)
}

// book changes a balance and appends the event that says so, in one transaction: both
// happen, or neither.
func book(ctx context.Context, db *sql.DB, events store.EventStore, owner string, cents int) (position int64, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	appended, err := events.Append(ctx, tx, store.Any(), []store.Event{{
		AggregateType: "Account", AggregateID: owner,
		EventType: "Booked", EventID: uuid.New(),
		Payload: fmt.Appendf(nil, `{"cents": %d}`, cents),
	}})
	if err != nil {
		return 0, err
	}
	if _, err := tx.ExecContext(ctx, `UPDATE accounts SET cents = cents + $1::int WHERE owner = $2::text`, cents, owner); err != nil {
		return 0, err
	}
	return appended.GlobalPositions[0], tx.Commit()
}

// overdrawn reports whether the table has refused a balance below 0.
func overdrawn(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.ConstraintName == "accounts_cents_check"
}

// Memory stands in for a broker that knows the IDs of what it has stored. Its answer to the
// second message is lost.
type Memory struct {
	known map[string]bool
	lost  bool
}

// Publish stores a message, once.
func (m *Memory) Publish(_ context.Context, msg Message) error {
	if m.known[msg.ID] {
		fmt.Printf("%s %s %s comes again and is dropped\n", msg.Subject, msg.Key, msg.Body)
		return nil
	}
	m.known[msg.ID] = true
	fmt.Printf("%s %s %s\n", msg.Subject, msg.Key, msg.Body)
	if len(m.known) == 2 && !m.lost {
		m.lost = true
		return errors.New("the broker's answer is lost")
	}
	return nil
}
