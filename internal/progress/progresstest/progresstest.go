// Package progresstest creates databases with a consumer's checkpoint for tests.
package progresstest

import (
	"database/sql"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/incarnation"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// Guarded is a database with one consumer, "c" at position 10 of 30. The consumer is assigned
// to one worker, whose Checkpoints are embedded.
type Guarded struct {
	*pgtest.Database
	progress.Checkpoints
	Worker uuid.UUID
	Token  string // of the incarnation
}

// New creates a Guarded.
func New(t *testing.T) Guarded {
	t.Helper()
	g := Guarded{Database: pgtest.New(t), Worker: uuid.New()}
	g.Checkpoints = g.As(t, g.Worker, time.Minute)
	g.Exec(t, `DELETE FROM consumer_checkpoints_token`)
	g.Exec(t, `INSERT INTO consumer_checkpoints_token (token, database) SELECT gen_random_uuid(), oid FROM pg_database WHERE datname = current_database()`)
	g.Exec(t, `SELECT setval('events_global_position_seq', 30)`)
	var err error
	if g.Token, err = g.Incarnation(t.Context(), g.DB); err != nil || g.Token == "" {
		t.Fatalf("the incarnation is %q: %v", g.Token, err)
	}
	g.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('c', 10)`)
	g.Assign(t, g.Worker)
	return g
}

// As returns the Checkpoints of a worker on the database.
func (g Guarded) As(t *testing.T, worker uuid.UUID, batchTimeout time.Duration) progress.Checkpoints {
	t.Helper()
	names, err := tables.Parse(store.Names{})
	if err != nil {
		t.Fatal(err)
	}
	return progress.New(names, worker, batchTimeout, g.server(t))
}

// server returns how statements name the incarnation.
func (g Guarded) server(t *testing.T) progress.Server {
	t.Helper()
	names, err := tables.Parse(store.Names{})
	if err != nil {
		t.Fatal(err)
	}
	var database string
	if err := g.DB.QueryRow(`SELECT oid::text || '::oid' FROM pg_database WHERE datname = current_database()`).Scan(&database); err != nil {
		t.Fatal(err)
	}
	const sequence = `"public"."events_global_position_seq"`
	return progress.Server{Incarnation: incarnation.Of(names.Token, `"public"."events"`, sequence, database), Sequence: sequence}
}

// Bind binds the reads of a log to the incarnation.
func (g Guarded) Bind(t *testing.T, log store.Log) store.BoundLog {
	t.Helper()
	bound, err := incarnation.Bind(t.Context(), g.DB, log, g.server(t).Incarnation)
	if err != nil {
		t.Fatal(err)
	}
	return bound
}

// Assign assigns the consumer to a worker.
func (g Guarded) Assign(t *testing.T, worker uuid.UUID) {
	g.Exec(t, `INSERT INTO consumer_assignments (consumer_name, worker_id) VALUES ('c', $1::uuid)
		ON CONFLICT (consumer_name) DO UPDATE SET worker_id = excluded.worker_id`, worker.String())
}

// Loaded loads the consumer's progress.
func (g Guarded) Loaded(t *testing.T) *progress.State {
	t.Helper()
	p, err := g.Load(t.Context(), g.DB, "c")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Begin begins a transaction. The end of the test rolls it back.
func (g Guarded) Begin(t *testing.T) *sql.Tx {
	t.Helper()
	tx, err := g.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}
