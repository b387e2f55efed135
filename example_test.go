package worker_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/observe/health"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
	"github.com/pgfrontier/worker/workertest"
)

// Printer prints events, and records each in a table.
type Printer struct {
	printed int
	enough  func(printed int)
}

func (*Printer) Name() string { return "printer_v1" }

func (p *Printer) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	fmt.Printf("%d: %s %s\n", e.GlobalPosition, e.EventType, e.Payload)
	p.printed++
	p.enough(p.printed)
	_, err := tx.ExecContext(ctx, `INSERT INTO printed VALUES ($1::bigint)`, e.GlobalPosition)
	return err
}

// A worker runs until its context ends, Stop is called, or an error occurs that no retry can
// end.
func ExampleWorker_Start() {
	ctx := context.Background()                              // signal.NotifyContext, for a program
	db, drop := database(`CREATE TABLE printed (at BIGINT)`) // sql.Open("pgx", url)
	defer drop()
	// Apply waits while the database is away. Any number of processes may call it at once. The
	// role that calls it owns the tables. Call it in a migration if the worker's role must not
	// own them.
	if err := migrations.Apply(ctx, db, nil); err != nil {
		log.Panic(err)
	}
	events := storepostgres.NewStore(storepostgres.DefaultStoreConfig())
	place(ctx, db, events, 500)
	place(ctx, db, events, 1200)

	printer := &Printer{}
	w := worker.New(db, events, []consumer.Consumer{printer})
	printer.enough = func(printed int) {
		if printed == 2 {
			w.Stop() // the batch in flight is finished first
		}
	}
	fmt.Println("error:", w.Start(ctx))
	// Output:
	// 1: OrderPlaced {"cents": 500}
	// 2: OrderPlaced {"cents": 1200}
	// error: <nil>
}

// Worth is a projection of the total value of all orders.
type Worth struct{}

func (Worth) Name() string { return "worth_v1" }

func (Worth) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	_, err := tx.ExecContext(ctx, `UPDATE worth SET cents = cents + ($1::jsonb->>'cents')::int`, string(e.Payload))
	return err
}

// An application reads its own writes: it waits until the projection contains them.
func ExampleWorker_WaitFor() {
	ctx := context.Background()
	db, drop := database(`CREATE TABLE worth AS SELECT 0 AS cents`)
	defer drop()
	events := storepostgres.NewStore(storepostgres.DefaultStoreConfig())
	w := worker.New(db, events, []consumer.Consumer{Worth{}})
	ended := make(chan error, 1)
	go func() { ended <- w.Start(ctx) }()

	position := place(ctx, db, events, 500)
	check(w.WaitFor(ctx, "worth_v1", position)) // a program gives ctx a deadline

	var cents int
	check(db.QueryRowContext(ctx, `SELECT cents FROM worth`).Scan(&cents))
	fmt.Println("all orders:", cents, "cents")
	w.Stop()
	check(<-ended)
	// Output: all orders: 500 cents
}

// Ledger records each order.
type Ledger struct{}

func (Ledger) Name() string { return "ledger_v1" }

func (Ledger) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO orders VALUES ($1::text)`, e.AggregateID)
	return err
}

// Metrics counts the events that a worker handles.
type Metrics struct{ events atomic.Int64 }

// Observe must return soon, because the worker waits for it.
func (m *Metrics) Observe(e observe.Event) {
	switch e := e.(type) {
	case observe.BatchDone:
		if e.Err == nil && !e.Overtaken {
			m.events.Add(int64(e.Events))
		}
	case observe.ConsumerPaused:
		log.Printf("alarm: %s is paused: %s", e.Consumer, e.Reason)
	}
}

// An observer turns events into metrics and alarms.
func ExampleWithObserver() {
	ctx := context.Background()
	db, drop := database(`CREATE TABLE orders (id TEXT)`)
	defer drop()
	events := storepostgres.NewStore(storepostgres.DefaultStoreConfig())
	for range 3 {
		place(ctx, db, events, 500)
	}

	m := &Metrics{}
	// CatchUp runs a worker until all events are handled. A program passes the option to New.
	check(workertest.CatchUp(ctx, db, events, []consumer.Consumer{Ledger{}}, worker.WithObserver(m.Observe)))
	fmt.Println(m.events.Load(), "events handled")
	// Output: 3 events handled
}

// The handlers serve liveness and readiness to an orchestrator.
func Example_health() {
	db, drop := database(`CREATE TABLE ledger (consumer TEXT, position BIGINT)`) // sql.Open("pgx", url) and migrations.Apply
	defer drop()
	started := make(chan struct{})
	w := worker.New(db, storepostgres.NewStore(storepostgres.DefaultStoreConfig()), []consumer.Consumer{Ledger{}},
		worker.WithObserver(observe.On(func(observe.WorkerStarted) { close(started) })))

	probes := http.NewServeMux()
	probes.Handle("/livez", health.Live(w))
	probes.Handle("/readyz", health.Ready(w, 5*time.Minute))
	server := httptest.NewServer(probes) // http.ListenAndServe(":8080", probes)
	defer server.Close()

	fmt.Print(get(server.URL + "/readyz"))
	ended := make(chan error)
	go func() { ended <- w.Start(context.Background()) }()
	<-started
	fmt.Print(get(server.URL + "/readyz"))
	fmt.Print(get(server.URL + "/livez"))
	w.Stop()
	check(<-ended)
	fmt.Print(get(server.URL + "/livez"))
	// Output:
	// 503 the worker is new: wait if it starts or drains, start the process again if it has stopped
	// 200 ok
	// 200 ok
	// 503 the worker has stopped: start the process again; what Start returned says why
}

// get returns the status and the body of a probe.
func get(url string) string {
	answer, err := http.Get(url)
	check(err)
	defer func() { check(answer.Body.Close()) }()
	body, err := io.ReadAll(answer.Body)
	check(err)
	return fmt.Sprint(answer.StatusCode, " ", string(body))
}

// Revenue handles only the newest version of OrderPlaced.
type Revenue struct{ done func() }

func (*Revenue) Name() string { return "revenue_v1" }

func (r *Revenue) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	fmt.Printf("version %d: %s\n", e.EventVersion, e.Payload)
	r.done()
	_, err := tx.ExecContext(ctx, `INSERT INTO revenue VALUES ($1::bigint)`, e.GlobalPosition)
	return err
}

// upcastOrder turns version 1 of an order into version 2, which has a currency.
func upcastOrder(_ context.Context, e store.PersistedEvent) (store.PersistedEvent, error) {
	if e.EventType != "OrderPlaced" || e.EventVersion >= 2 {
		return e, nil
	}
	var old struct {
		Cents int `json:"cents"`
	}
	if err := json.Unmarshal(e.Payload, &old); err != nil {
		return e, err // counts as a failure of the handler at this event
	}
	e.EventVersion = 2
	e.Payload = fmt.Appendf(nil, `{"amount": %d, "currency": "EUR"}`, old.Cents)
	return e, nil
}

// Old versions of events stay unchanged in the log. A decoder turns them into the newest
// version, so that handlers need no other.
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

// keys has the key of each person, until the person asks for erasure.
var keys = map[string]byte{}

// decrypt decrypts an event of a person. Without the person's key it returns an event of type
// Forgotten. A program uses AES-GCM in place of XOR with a byte.
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

// Deleting the key of a person makes all events of the person unreadable.
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

// people passes its events to show.
type people struct{ show func(store.PersistedEvent) }

func (*people) Name() string { return "people_v1" }

func (p *people) Handle(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
	p.show(e)
	return nil
}

// database makes a database for an Example, with the tables of package migrations and one
// more.
func database(table string) (db *sql.DB, drop func()) {
	t, drop := pgtest.Example()
	d := pgtest.New(t)
	d.Exec(t, table)
	return d.DB, drop
}

// place appends an order with a value in cents, as an application does.
func place(ctx context.Context, db *sql.DB, events *storepostgres.Store, cents int) (position int64) {
	tx, err := db.BeginTx(ctx, nil)
	check(err)
	appended, err := events.Append(ctx, tx, store.NoStream(), []store.Event{{
		AggregateType: "Order", AggregateID: uuid.NewString(),
		EventType: "OrderPlaced", EventID: uuid.New(),
		Payload: fmt.Appendf(nil, `{"cents": %d}`, cents),
	}})
	check(err)
	check(tx.Commit())
	return appended.GlobalPositions[0]
}

func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}
