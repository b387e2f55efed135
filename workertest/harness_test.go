package workertest_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const patience = pgtest.Patience

// counter counts the events of each aggregate.
type counter struct {
	name   string
	types  []string
	start  consumer.Start
	before func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error
}

func (c *counter) Name() string             { return c.name }
func (c *counter) AggregateTypes() []string { return c.types }
func (c *counter) StartAt() consumer.Start  { return c.start }

func (c *counter) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	if c.before != nil {
		if err := c.before(ctx, tx, e); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO counts VALUES ($1::text, 1) ON CONFLICT (id) DO UPDATE SET n = counts.n + 1`, c.name+" "+e.AggregateID)
	return err
}

func newDatabase(t *testing.T) *pgtest.Database {
	d := pgtest.New(t)
	d.Exec(t, `CREATE TABLE counts (id TEXT PRIMARY KEY, n INT NOT NULL)`)
	return d
}

func counts(t *testing.T, q store.Querier) (all string) {
	t.Helper()
	if err := q.QueryRowContext(t.Context(), `SELECT coalesce(string_agg(id || ' ' || n, ', ' ORDER BY id), '') FROM counts`).Scan(&all); err != nil {
		t.Fatal(err)
	}
	return all
}

func event(kind, id string) store.Event {
	return store.Event{AggregateType: kind, AggregateID: id, EventType: "Happened", EventID: uuid.New(), Payload: []byte(`{}`)}
}

func begin(t *testing.T, db *sql.DB, events ...store.Event) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newStore().Append(t.Context(), tx, store.Any(), events); err != nil {
		t.Fatal(err)
	}
	return tx
}

func appendEvents(t *testing.T, db *sql.DB, events ...store.Event) {
	t.Helper()
	if err := begin(t, db, events...).Commit(); err != nil {
		t.Fatal(err)
	}
}

func newStore() *storepostgres.Store {
	return storepostgres.NewStore(storepostgres.DefaultStoreConfig())
}
