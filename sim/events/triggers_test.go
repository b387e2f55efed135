package events

import (
	"database/sql"
	"reflect"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/sim/history"
)

// stranger is a worker of the tests, with one connection.
func stranger(t *testing.T, on *Database, name string, id uuid.UUID) *sql.DB {
	config := on.Config(name)
	config.RuntimeParams[myself] = id.String()
	db := stdlib.OpenDB(*config)
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func TestTriggersNoteWhatWasNotAllowed(t *testing.T) {
	t.Parallel()
	on := newDatabase(t)
	one, two := uuid.New(), uuid.New()
	a, b := stranger(t, on, "a", one), stranger(t, on, "b", two)
	const (
		move   = `UPDATE consumer_checkpoints SET last_position = last_position + 1 WHERE consumer_name = 'c'`
		assign = `INSERT INTO consumer_assignments (consumer_name, worker_id) VALUES ('c', $1) ON CONFLICT (consumer_name) DO UPDATE SET worker_id = excluded.worker_id`
	)
	exec(t, on.DB, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('c', 0)`)

	exec(t, a, assign, one) // no leader
	exec(t, b, `SELECT pg_advisory_lock(7)`)
	exec(t, b, assign, two) // the leader
	exec(t, a, `SELECT pg_advisory_lock_shared(8)`)
	exec(t, a, assign, one) // as every worker
	exec(t, on.DB, `INSERT INTO worker_leader_election (name, worker_id) VALUES ('lease', $1)`, one)
	exec(t, a, assign, one) // the holder of the lease
	exec(t, on.DB, assign, one)

	exec(t, on.DB, move) // an operator
	exec(t, a, move)
	exec(t, b, move) // a's
	tx, err := a.Begin()
	if err != nil {
		t.Fatal(err)
	}
	exec(t, tx, move)
	waited := make(chan error, 1)
	exec(t, on.DB, assign, two)
	go func() {
		_, err := b.Exec(move)
		waited <- err
	}()
	eventually(t, "the second worker to wait for the row", func() bool {
		var n int
		if err := on.DB.QueryRow(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'sim b' AND wait_event_type = 'Lock'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 1
	})
	exec(t, on.DB, assign, one) // taken from the one that waits
	exec(t, tx, move)           // and still the first one's: a batch that ends before its last event
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Fatal(err)
	}

	var e history.Evidence
	if err := on.collectUnauthorized(t.Context(), &e); err != nil {
		t.Fatal(err)
	}
	if len(e.Unauthorized) != 1 || e.Unauthorized[0].Worker != "b" || e.Unauthorized[0].Consumer != "c" || e.Unauthorized[0].Batch == "" {
		t.Errorf("unauthorized batches: %+v, want that of b's first move only", e.Unauthorized)
	}
	want := []history.Assignment{{Consumer: "c", Worker: "a"}, {Consumer: "c", Worker: "b", Led: true}, {Consumer: "c", Worker: "a"}, {Consumer: "c", Worker: "a", Led: true}}
	if !reflect.DeepEqual(e.Assignments, want) {
		t.Errorf("assignments: %+v, want %+v", e.Assignments, want)
	}
}
