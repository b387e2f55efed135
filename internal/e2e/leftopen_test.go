package e2e

import (
	"database/sql"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// A program has sent BEGIN through the pool, and lib/pq gives such a connection to the
// next caller. In a transaction that is repeatable read the frontier would see no event
// any more.
func TestFrontierInATransactionThatWasLeftOpen(t *testing.T) {
	t.Parallel()
	d := leaveOpen(t, "BEGIN ISOLATION LEVEL REPEATABLE READ")
	for range 5 {
		appendN(t, d.DB, "Order", "1", 1)
	}
	awaitHandled(t, d.DB, "all", upTo(6)...)
}

// In a transaction pg_stat_activity stands still: one that has drawn a position since
// would seem to be idle, and its event would be taken for void.
func TestEventOfATransactionThatTheFrontierWouldNotSee(t *testing.T) {
	t.Parallel()
	d := leaveOpen(t, "BEGIN")
	tx, err := d.DB.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	draw := func(id string) {
		if _, err := newStore().Append(t.Context(), tx, store.Any(), []store.Event{event("Order", id)}); err != nil {
			t.Fatal(err)
		}
	}
	draw("a")
	appendN(t, d.DB, "Order", "1", 1)
	awaitHandled(t, d.DB, "all", 1, 3)
	draw("b")
	appendN(t, d.DB, "Order", "1", 1)
	awaitHandled(t, d.DB, "all", 1, 3, 5)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	awaitHandled(t, d.DB, "all", 1, 3, 5, 2, 4)
}

// leaveOpen begins a transaction on each idle connection of a worker's pool, and cuts
// the connection of the frontier.
func leaveOpen(t *testing.T, begin string) *pgtest.Database {
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 1)
	db := d.OpenPQ(t)
	db.SetMaxIdleConns(16)
	start(t, db, []consumer.Consumer{&ledger{name: "all"}}, worker.WithStaleGapThreshold(200*time.Millisecond))
	awaitHandled(t, d.DB, "all", 1)
	conns := make([]*sql.Conn, 12)
	for i := range conns {
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conns[i] = conn
	}
	for _, conn := range conns {
		if _, err := conn.ExecContext(t.Context(), begin); err != nil {
			t.Fatal(err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var cut int
	await(t, "the frontier's connection to be cut", func() bool {
		cut = one[int](t, d.DB, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%string_agg(p::text%'`)
		return cut > 0
	})
	if cut != 1 {
		t.Fatalf("cut %d connections, want the frontier's", cut)
	}
	return d
}
