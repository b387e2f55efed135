package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// TestMain also makes the program a worker process, for tests that kill one.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(workerProcess(role))
	}
	pgtest.Main(m)
}

// await polls until done holds, and fails the test if it does not within a
// time that only a stuck worker needs. state says more of how things stand then.
func await(t testing.TB, what string, done func() bool, state ...func() string) {
	t.Helper()
	if pgtest.Poll(done) {
		return
	}
	for _, more := range state {
		what += "\n" + more()
	}
	t.Fatalf("waited in vain for: %s", what)
}

// errNotWritten makes a ledger return without an error and without writing.
var errNotWritten = errors.New("not to be written")

// ledger is a consumer that writes down what it is given, in the transaction
// it is given.
type ledger struct {
	name   string
	types  []string
	before func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error
}

func (l *ledger) Name() string { return l.name }

func (l *ledger) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	if l.before != nil {
		if err := l.before(ctx, tx, e); err == errNotWritten { // errors.Is may panic with errors of tests
			return nil
		} else if err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO ledger (consumer, position) VALUES ($1, $2)`, l.name, e.GlobalPosition)
	return err
}

type scopedLedger struct{ ledger }

func (l *scopedLedger) AggregateTypes() []string { return l.types }

type startingLedger struct {
	ledger
	start consumer.Start
}

func (l *startingLedger) StartAt() consumer.Start { return l.start }

// newLog makes a database with an empty log and an empty ledger.
func newLog(t testing.TB) *pgtest.Database {
	return withLedger(t, pgtest.New(t))
}

func withLedger(t testing.TB, d *pgtest.Database) *pgtest.Database {
	d.Exec(t, `CREATE TABLE ledger (id BIGSERIAL PRIMARY KEY, consumer TEXT NOT NULL, position BIGINT NOT NULL)`)
	return d
}

func newStore() *storepostgres.Store {
	return storepostgres.NewStore(storepostgres.DefaultStoreConfig())
}

func event(aggregateType, id string) store.Event {
	return store.Event{AggregateType: aggregateType, AggregateID: id, EventType: "Happened", EventID: uuid.New(), Payload: []byte(`{}`)}
}

// appendN commits n events of one aggregate in one transaction.
func appendN(t testing.TB, db *sql.DB, aggregateType, id string, n int) {
	t.Helper()
	tx := beginAppend(t, db, aggregateType, id, n)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

// beginAppend appends n events and leaves the transaction open.
func beginAppend(t testing.TB, db *sql.DB, aggregateType, id string, n int) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	events := make([]store.Event, n)
	for i := range events {
		events[i] = event(aggregateType, id)
	}
	if _, err := newStore().Append(context.Background(), tx, store.Any(), events); err != nil {
		t.Fatal(err)
	}
	return tx
}

// open opens a pool over a driver.
func open(t *testing.T, d *pgtest.Database, driver string) *sql.DB {
	t.Helper()
	if driver == "lib/pq" {
		return d.OpenPQ(t)
	}
	return d.DB
}

// handled returns the positions in a consumer's ledger, in order.
func handled(t testing.TB, db *sql.DB, consumer string) (positions []int64) {
	t.Helper()
	return positionsBy(t, db, `SELECT position FROM ledger WHERE consumer = $1 ORDER BY id`, consumer)
}

// positionsBy returns the positions that a query finds.
func positionsBy(t testing.TB, db *sql.DB, query string, args ...any) (positions []int64) {
	t.Helper()
	rows, err := db.Query(query, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var p int64
		if err := rows.Scan(&p); err != nil {
			t.Fatal(err)
		}
		positions = append(positions, p)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return positions
}

func awaitHandled(t testing.TB, db *sql.DB, consumer string, want ...int64) {
	t.Helper()
	await(t, fmt.Sprintf("consumer %s to have handled %d events", consumer, len(want)), func() bool {
		return len(handled(t, db, consumer)) >= len(want)
	})
	if got := handled(t, db, consumer); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("consumer %s handled %v, want %v", consumer, got, want)
	}
}

func upTo(n int64) (positions []int64) {
	for p := int64(1); p <= n; p++ {
		positions = append(positions, p)
	}
	return positions
}

// running is a worker that a test has started.
type running struct {
	*worker.Worker
	done chan error
}

// start starts a worker with quick heartbeats, and stops it when the test ends.
func start(t testing.TB, db *sql.DB, consumers []consumer.Consumer, opts ...worker.Option) *running {
	t.Helper()
	return runWorker(t, worker.New(db, newStore(), consumers, append(quick(), opts...)...))
}

// quick are settings for tests.
func quick() []worker.Option {
	return []worker.Option{
		worker.WithDispatcherInterval(50 * time.Millisecond),
		worker.WithPollInterval(50 * time.Millisecond),
		worker.WithHeartbeatInterval(200 * time.Millisecond),
		worker.WithHeartbeatTimeout(30 * time.Second), // a busy machine makes no worker dead
		worker.WithRebalanceInterval(200 * time.Millisecond),
	}
}

func runWorker(t testing.TB, w *worker.Worker) *running {
	r := &running{w, make(chan error, 1)}
	go func() { r.done <- r.Start(context.Background()) }()
	t.Cleanup(func() {
		r.Stop()
		select {
		case err := <-r.done:
			if t.Failed() {
				t.Logf("the worker's end: %v", err)
			}
		case <-time.After(pgtest.Patience):
			t.Error("the worker does not stop")
		}
	})
	return r
}

// result waits for the worker's end.
func (r *running) result(t testing.TB) error {
	t.Helper()
	select {
	case err := <-r.done:
		r.done <- err // for the cleanup
		return err
	case <-time.After(pgtest.Patience):
		t.Fatal("the worker does not end")
		return nil
	}
}

func checkpoint(t testing.TB, db *sql.DB, consumer string) (position int64) {
	t.Helper()
	err := db.QueryRow(`SELECT last_position FROM consumer_checkpoints WHERE consumer_name = $1`, consumer).Scan(&position)
	if errors.Is(err, sql.ErrNoRows) {
		return -1
	}
	if err != nil {
		t.Fatal(err)
	}
	return position
}

// handler is a consumer made of a function.
type handler struct {
	name   string
	handle func(ctx context.Context, tx *sql.Tx) error
}

func (h *handler) Name() string { return h.name }

func (h *handler) Handle(ctx context.Context, tx *sql.Tx, _ store.PersistedEvent) error {
	return h.handle(ctx, tx)
}

// one returns one value.
func one[T any](t testing.TB, db *sql.DB, query string, args ...any) (v T) {
	t.Helper()
	if err := db.QueryRowContext(context.Background(), query, args...).Scan(&v); err != nil {
		t.Fatalf("%v, in\n%s", err, query)
	}
	return v
}
