package worker_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// Revenue knows the newest version of OrderPlaced only.
type Revenue struct{ done func() }

func (*Revenue) Name() string { return "revenue_v1" }

func (r *Revenue) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	fmt.Printf("version %d: %s\n", e.EventVersion, e.Payload)
	r.done()
	_, err := tx.ExecContext(ctx, `INSERT INTO revenue VALUES ($1::bigint)`, e.GlobalPosition)
	return err
}

// upcastOrder makes version 2 of an order, which has a currency, of version 1.
func upcastOrder(_ context.Context, e store.PersistedEvent) (store.PersistedEvent, error) {
	if e.EventType != "OrderPlaced" || e.EventVersion >= 2 {
		return e, nil
	}
	var old struct {
		Cents int `json:"cents"`
	}
	if err := json.Unmarshal(e.Payload, &old); err != nil {
		return e, err // a failure at this event, as if the handler had failed
	}
	e.EventVersion = 2
	e.Payload = fmt.Appendf(nil, `{"amount": %d, "currency": "EUR"}`, old.Cents)
	return e, nil
}

// Old versions of events stay in the log as they are. A decoder makes the newest
// version of them, so that handlers know no other.
func ExampleWithDecoder() {
	ctx := context.Background()
	db, drop := database(`CREATE TABLE revenue (at BIGINT)`)
	defer drop()
	events := storepostgres.NewStore(storepostgres.DefaultStoreConfig())
	place(ctx, db, events, 500) // {"cents": 500}

	revenue := &Revenue{}
	w := worker.New(db, events, []consumer.Consumer{revenue}, worker.WithDecoder(upcastOrder))
	revenue.done = w.Stop
	fmt.Println("error:", w.Start(ctx))
	// Output:
	// version 2: {"amount": 500, "currency": "EUR"}
	// error: <nil>
}

// keys are those of the persons who have not asked to be forgotten.
var keys = map[string]byte{}

// decrypt makes readable what belongs to a person, or an event that says that nobody can
// read it any more. A byte is no key, and XOR no cipher: take AES-GCM.
func decrypt(_ context.Context, e store.PersistedEvent) (store.PersistedEvent, error) {
	key, known := keys[e.AggregateID]
	if !known {
		e.EventType, e.Payload = "Forgotten", nil
		return e, nil
	}
	for i := range e.Payload {
		e.Payload[i] ^= key
	}
	return e, nil
}

// The key of a person is deleted, and with it all that the log says of the person.
func ExampleWithDecoder_decrypt() {
	ctx := context.Background()
	db, drop := database(`CREATE TABLE revenue (at BIGINT)`)
	defer drop()
	events := storepostgres.NewStore(storepostgres.DefaultStoreConfig())
	keys["ann"] = 42
	for _, person := range []string{"ann", "bob"} {
		payload := []byte("lives in Rome")
		for i := range payload {
			payload[i] ^= 42
		}
		tx, err := db.BeginTx(ctx, nil)
		check(err)
		_, err = events.Append(ctx, tx, store.NoStream(), []store.Event{{AggregateType: "Person", AggregateID: person, EventType: "Moved", EventID: uuid.New(), Payload: payload}})
		check(err)
		check(tx.Commit())
	}

	var w *worker.Worker
	seen := 0
	people := &people{func(e store.PersistedEvent) {
		fmt.Printf("%s: %s, %q\n", e.AggregateID, e.EventType, e.Payload)
		if seen++; seen == 2 {
			w.Stop()
		}
	}}
	w = worker.New(db, events, []consumer.Consumer{people}, worker.WithDecoder(decrypt))
	fmt.Println("error:", w.Start(ctx))
	// Output:
	// ann: Moved, "lives in Rome"
	// bob: Forgotten, ""
	// error: <nil>
}

// people shows what it is given.
type people struct{ show func(store.PersistedEvent) }

func (*people) Name() string { return "people_v1" }

func (p *people) Handle(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
	p.show(e)
	return nil
}
