package progress

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// Prepared is a prepared transaction that holds a consumer's checkpoint row. The zero value
// means that there is none. A handler that sends PREPARE TRANSACTION leaves such a transaction
// behind. Its lock outlasts the session, the worker and the server.
type Prepared struct {
	Transaction string // the transaction's id
	GID         string // the transaction's name, as an SQL literal
	Owner       string // the role that prepared it
	Age         time.Duration
}

// holders are the statements that find who holds a consumer's row.
type holders struct {
	worker               uuid.UUID
	prepared, batch, end string
}

// HolderPrepared returns the prepared transaction that holds a consumer's row.
func (h holders) HolderPrepared(ctx context.Context, q store.Querier, unit string) (p Prepared, err error) {
	var seconds float64
	err = q.QueryRowContext(ctx, h.prepared, unit).Scan(&p.Transaction, &p.GID, &p.Owner, &seconds)
	if errors.Is(err, sql.ErrNoRows) {
		return Prepared{}, nil
	}
	if err != nil {
		return p, fmt.Errorf("worker: find a prepared transaction that holds consumer %q: %w", unit, err)
	}
	p.Age = time.Duration(seconds * float64(time.Second)).Round(time.Second)
	return p, nil
}

// String names the transaction and its remedy.
func (p Prepared) String() string {
	return fmt.Sprintf("prepared transaction %s (of role %s, since %v): ROLLBACK PREPARED %[1]s; if a handler prepared it, COMMIT PREPARED would move the checkpoint past events that no handler has finished", p.GID, p.Owner, p.Age)
}

// Signature returns the key of the advisory lock by which a batch shows its worker: the first
// half of the worker's id.
func Signature(worker uuid.UUID) int64 { return int64(binary.BigEndian.Uint64(worker[:8])) }

// signedFor returns SQL for the key of the second lock. The key identifies the consumer by the
// table of its checkpoint. No other session holds this pair of locks.
func signedFor(consumer, signature, table string) string {
	return `hashtextextended(` + consumer + `, ` + signature + ` # ` + table + `::oid::bigint)`
}

// signBatch returns the part of the guard's result that records the worker and the consumer of
// the batch. The locks last as long as its transaction. They are shared locks, so no session
// waits for them.
func signBatch(worker uuid.UUID) string {
	key := fmt.Sprintf("(%d)::bigint", Signature(worker))
	return `pg_try_advisory_xact_lock_shared(` + key + `) AND pg_try_advisory_xact_lock_shared(` + signedFor("$1::text", key, "home") + `)`
}

// batches returns SQL that finds the batches of consumer $1 by the locks of their sessions.
func batches(t tables.Tables) string {
	const held = `(
	SELECT pid, (classid::bigint << 32) | objid::bigint AS key FROM pg_locks
	WHERE locktype = 'advisory' AND objsubid = 1 AND mode = 'ShareLock' AND granted
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
)`
	table := `'` + strings.ReplaceAll(t.Checkpoints.SQL(), `'`, `''`) + `'::regclass`
	return `
FROM ` + held + ` AS worker
JOIN ` + held + ` AS batch ON batch.pid = worker.pid AND batch.key = ` + signedFor("$1::text", "worker.key", table)
}

// endBatch returns a statement that ends the session $2 if it is still in such a batch, signed
// by $3.
func endBatch(t tables.Tables) string {
	return `
SELECT pg_terminate_backend(worker.pid)` + batches(t) + `
WHERE worker.pid = $2::bigint AND worker.key = $3::bigint`
}

// findBatch returns a statement that finds a batch and its worker, if the worker still has a
// row. It skips the session $2. If $2 is 0, it skips all batches signed by $3.
func findBatch(t tables.Tables) string {
	return `
SELECT worker.pid, worker.key, coalesce((
	SELECT worker_id::text FROM ` + t.Nodes.SQL() + `
	WHERE ('x' || left(replace(worker_id::text, '-', ''), 16))::bit(64)::bigint = worker.key), '')` + batches(t) + `
WHERE worker.pid <> $2::bigint AND ($2::bigint <> 0 OR worker.key <> $3::bigint)
ORDER BY worker.pid LIMIT 1`
}

// OpenBatch is a batch that blocks its consumer. Its worker is dead or has given up the batch.
// The zero value means that there is none.
type OpenBatch struct {
	Session   int64 // the pid of the backend
	Signature int64
	Worker    uuid.UUID // nil: the worker has no row any more
}

// OpenBatch returns the batch of a consumer that holds its row. It skips the batch of the
// session own. If own is 0, it skips all batches of this worker.
func (h holders) OpenBatch(ctx context.Context, q store.Querier, unit string, own int64) (z OpenBatch, err error) {
	var worker string
	err = q.QueryRowContext(ctx, h.batch, unit, own, Signature(h.worker)).Scan(&z.Session, &z.Signature, &worker)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return OpenBatch{}, nil
	case err == nil && worker != "":
		z.Worker, err = uuid.Parse(worker)
	}
	return z, err
}

// EndBatch ends the session of a batch if the session is still in that batch.
func (h holders) EndBatch(ctx context.Context, q store.Querier, unit string, z OpenBatch) (ended bool, err error) {
	err = q.QueryRowContext(ctx, h.end, unit, z.Session, z.Signature).Scan(&ended)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return ended, err
}
