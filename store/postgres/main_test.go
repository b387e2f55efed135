package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/lab/either"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var defaultStore = storepostgres.NewStore(storepostgres.DefaultStoreConfig())

// native are the pools whose transactions are of pgx.
var native sync.Map

// eachDriver runs f with every driver and exec mode, on empty tables. With pgx, it runs f twice: with
// transactions of database/sql and of pgx.
func eachDriver(t *testing.T, f func(t *testing.T, db *sql.DB)) {
	t.Helper()
	d := pgtest.New(t)
	run := func(name string, open func(t *testing.T) *sql.DB) {
		t.Run(name, func(t *testing.T) {
			d.Exec(t, `TRUNCATE events, aggregate_heads RESTART IDENTITY`)
			f(t, open(t))
		})
	}
	for _, mode := range pgtest.Modes() {
		run("pgx "+mode.String(), func(t *testing.T) *sql.DB { return d.OpenMode(t, mode) })
		run("pgx.Tx "+mode.String(), func(t *testing.T) *sql.DB {
			db := d.OpenMode(t, mode)
			native.Store(db, true)
			return db
		})
	}
	run("pq", func(t *testing.T) *sql.DB { return d.OpenPQ(t) })
}

func newEvent(aggregateType, aggregateID string) store.Event {
	return store.Event{
		AggregateType: aggregateType,
		AggregateID:   aggregateID,
		EventType:     aggregateType + "Changed",
		EventID:       uuid.New(),
		Payload:       []byte(`{"a":1}`),
	}
}

func newEvents(n int, aggregateType, aggregateID string) []store.Event {
	events := make([]store.Event, n)
	for i := range events {
		events[i] = newEvent(aggregateType, aggregateID)
	}
	return events
}

// fataler has the methods that *testing.T and *rapid.T share.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// begin begins a transaction. end rolls it back, if it has not ended.
func begin(t fataler, db *sql.DB) (tx either.Tx, end func()) {
	t.Helper()
	_, ofPgx := native.Load(db)
	conn, err := db.Conn(context.Background())
	if err == nil {
		tx, err = either.Begin(context.Background(), conn, ofPgx)
	}
	if err != nil {
		t.Fatalf("begin: %v", err)
	}
	return tx, func() {
		defer conn.Close()
		if err := tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) && !errors.Is(err, pgx.ErrTxClosed) {
			t.Fatalf("rollback: %v", err)
		}
	}
}

// in runs f in a transaction.
func in(tx either.Tx, f func(tx *sql.Tx) error) error {
	_, err := either.Do(tx, func(tx *sql.Tx) (none struct{}, err error) { return none, f(tx) })
	return err
}

// inTx runs f in a transaction and commits it.
func inTx(t fataler, db *sql.DB, f func(tx *sql.Tx)) {
	t.Helper()
	tx, end := begin(t, db)
	defer end()
	if err := in(tx, func(tx *sql.Tx) error { f(tx); return nil }); err != nil {
		t.Fatalf("%v", err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatalf("commit: %v", err)
	}
}

// mustAppend appends in a transaction of its own.
func mustAppend(t *testing.T, s *storepostgres.Store, db *sql.DB, expected store.ExpectedVersion, events ...store.Event) store.AppendResult {
	t.Helper()
	var result store.AppendResult
	inTx(t, db, func(tx *sql.Tx) {
		var err error
		if result, err = s.Append(t.Context(), tx, expected, events); err != nil {
			t.Fatalf("append: %v", err)
		}
	})
	return result
}

func count(t *testing.T, q store.Querier, query string, args ...any) (n int) {
	t.Helper()
	if err := q.QueryRowContext(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatalf("%v\nin: %s", err, query)
	}
	return n
}
