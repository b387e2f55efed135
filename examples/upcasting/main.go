// Command upcasting has events of three versions in its log. A decoder makes the newest
// version of each, so the consumer knows no other.
//
//	go run ./examples/upcasting
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

	"github.com/google/uuid"

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

// OrderPlaced is the payload of version 3, the newest.
type OrderPlaced struct {
	Price Price `json:"price"`
}

// Price is an amount of money.
type Price struct {
	Cents    int    `json:"cents"`
	Currency string `json:"currency"`
}

// orderPlaced1 had no currency: everybody paid in euros.
type orderPlaced1 struct {
	Cents int `json:"cents"`
}

// orderPlaced2 had a currency beside the cents.
type orderPlaced2 struct {
	Cents    int    `json:"cents"`
	Currency string `json:"currency"`
}

// version identifies the shape of a payload.
type version struct {
	eventType string
	number    int
}

// upcasters make the next version of a payload. Old ones stay as they are: a new version adds
// one line.
var upcasters = map[version]func(payload []byte) ([]byte, error){
	{"OrderPlaced", 1}: upcaster(func(old orderPlaced1) orderPlaced2 { return orderPlaced2{old.Cents, "EUR"} }),
	{"OrderPlaced", 2}: upcaster(func(old orderPlaced2) OrderPlaced { return OrderPlaced{Price(old)} }),
}

// upcaster makes JSON of one type from JSON of another.
func upcaster[Old, New any](next func(Old) New) func(payload []byte) ([]byte, error) {
	return func(payload []byte) ([]byte, error) {
		var old Old
		if err := json.Unmarshal(payload, &old); err != nil {
			return nil, err
		}
		return json.Marshal(next(old))
	}
}

// upcast is the decoder: it makes the newest version of an event. An error is a failure of the
// consumer at this event.
func upcast(_ context.Context, e store.PersistedEvent) (store.PersistedEvent, error) {
	for {
		next, old := upcasters[version{e.EventType, e.EventVersion}]
		if !old {
			return e, nil
		}
		payload, err := next(e.Payload)
		if err != nil {
			return e, fmt.Errorf("upcast version %d of %s: %w", e.EventVersion, e.EventType, err)
		}
		e.Payload = payload
		e.EventVersion++
	}
}

// Revenue adds up what orders are worth, in each currency. It knows version 3 only.
type Revenue struct{}

func (Revenue) Name() string { return "revenue_v1" }

func (Revenue) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	var o OrderPlaced
	if err := json.Unmarshal(e.Payload, &o); err != nil {
		return err
	}
	fmt.Printf("handles version %d: %s\n", e.EventVersion, e.Payload)
	_, err := tx.ExecContext(ctx, `
		INSERT INTO revenue (currency, cents) VALUES ($1::text, $2::int)
		ON CONFLICT (currency) DO UPDATE SET cents = revenue.cents + excluded.cents`, o.Price.Currency, o.Price.Cents)
	return err
}

func run(ctx context.Context, db *sql.DB) error {
	if err := migrations.Apply(ctx, db, nil); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, `CREATE TABLE revenue (currency TEXT PRIMARY KEY, cents INT NOT NULL)`); err != nil {
		return err
	}
	events := storepostgres.NewStore(storepostgres.DefaultStoreConfig())
	var last int64
	for i, payload := range []string{ // of versions 1, 2 and 3, as programs of their time wrote them
		`{"cents": 500}`, `{"cents": 1200, "currency": "USD"}`, `{"price": {"cents": 300, "currency": "EUR"}}`,
	} {
		position, err := place(ctx, db, events, i+1, payload)
		if err != nil {
			return err
		}
		last = position
	}

	w := worker.New(db, events, []consumer.Consumer{Revenue{}}, worker.WithDecoder(upcast))
	ended := make(chan error, 1)
	go func() { ended <- w.Start(ctx) }() // a program of yours: return w.Start(ctx)
	err := w.WaitFor(ctx, Revenue{}.Name(), last)
	w.Stop()
	if err := errors.Join(err, <-ended); err != nil {
		return err
	}
	var euros int
	if err := db.QueryRowContext(ctx, `SELECT cents FROM revenue WHERE currency = 'EUR'`).Scan(&euros); err != nil {
		return err
	}
	fmt.Printf("revenue in euros: %d cents\n", euros)
	return nil
}

// place appends an event of a version.
func place(ctx context.Context, db *sql.DB, events store.EventStore, version int, payload string) (position int64, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	appended, err := events.Append(ctx, tx, store.NoStream(), []store.Event{{
		AggregateType: "Order", AggregateID: uuid.NewString(),
		EventType: "OrderPlaced", EventVersion: version, EventID: uuid.New(), Payload: []byte(payload),
	}})
	if err != nil {
		return 0, err
	}
	return appended.GlobalPositions[0], tx.Commit()
}
