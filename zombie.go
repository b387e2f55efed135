package worker

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// signature is the key of the advisory lock by which a batch shows its worker:
// the first half of the worker's id.
func signature(worker uuid.UUID) int64 { return int64(binary.BigEndian.Uint64(worker[:8])) }

// signedFor is the key of the second lock, which shows what the batch is of: a
// consumer, by the table of its checkpoint. Nobody else holds these two.
func signedFor(consumer, signature, table string) string {
	return `hashtextextended(` + consumer + `, ` + signature + ` # ` + table + `::oid::bigint)`
}

// signBatch is the part of the guard's result that records whose batch it is,
// for as long as its transaction lasts. The locks are shared, so nobody waits.
func signBatch(worker uuid.UUID) string {
	key := fmt.Sprintf("(%d)::bigint", signature(worker))
	return `pg_try_advisory_xact_lock_shared(` + key + `) AND pg_try_advisory_xact_lock_shared(` + signedFor("$1::text", key, "home") + `)`
}

// batches finds the batches of the consumer $1, by the locks of their sessions.
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

// endBatch ends the session $2 if it is still in such a batch, signed by $3.
func endBatch(t tables.Tables) string {
	return `
SELECT pg_terminate_backend(worker.pid)` + batches(t) + `
WHERE worker.pid = $2::bigint AND worker.key = $3::bigint`
}

// findBatch also names the worker, unless it has no row any more. The session
// $2 is left out; if that is not known, so is all that is signed by $3.
func findBatch(t tables.Tables) string {
	return `
SELECT worker.pid, worker.key, coalesce((
	SELECT worker_id::text FROM ` + t.Nodes.SQL() + `
	WHERE ('x' || left(replace(worker_id::text, '-', ''), 16))::bit(64)::bigint = worker.key), '')` + batches(t) + `
WHERE worker.pid <> $2::bigint AND ($2::bigint <> 0 OR worker.key <> $3::bigint)
ORDER BY worker.pid LIMIT 1`
}

// zombie is a batch whose worker is dead, or has given it up, and which keeps
// its consumer from going on. Its zero value is none.
type zombie struct {
	session   int64 // the pid of the server's process
	signature int64
	worker    uuid.UUID // nil: it has no row any more
}

// Batch returns the batch of a consumer that holds its row. It is not the one
// of the session own, nor, if that is 0, any of this worker.
func (c checkpoints) Batch(ctx context.Context, q store.Querier, unit string, own int64) (z zombie, err error) {
	var worker string
	err = q.QueryRowContext(ctx, c.batch, unit, own, signature(c.worker)).Scan(&z.session, &z.signature, &worker)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return zombie{}, nil
	case err == nil && worker != "":
		z.worker, err = uuid.Parse(worker)
	}
	return z, err
}

// EndBatch ends the session of a batch, if it is in that batch still.
func (c checkpoints) EndBatch(ctx context.Context, q store.Querier, unit string, z zombie) (ended bool, err error) {
	err = q.QueryRowContext(ctx, c.endBatch, unit, z.session, z.signature).Scan(&ended)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return ended, err
}

// endZombies returns what looks for the batch that holds the consumer's row,
// and ends it if two looks in a row find that its worker is dead. The batch
// would keep its consumer until the server ends it for being idle.
//
// It does not need the session of the guard that waits: the locks of a batch
// say whose it is, also through a proxy that makes up its clients' sessions.
func (c *consumerLoop) endZombies(session int64) (look func(ctx context.Context) error) {
	if c.w.cfg.LeaderStrategy != LeaderStrategyAdvisory {
		return func(context.Context) error { return nil } // a session may be many workers'
	}
	var s suspicion
	return func(ctx context.Context) error {
		z, err := c.lookForZombie(ctx, session)
		if s.confirms(z) {
			return c.endZombie(ctx, z)
		}
		return err
	}
}

// suspicion is what the latest look has found.
type suspicion struct{ zombie }

// confirms reports whether a look found the same as the one before.
func (s *suspicion) confirms(z zombie) bool {
	again := z == s.zombie && z != (zombie{})
	s.zombie = z
	return again
}

// lookForZombie returns the batch that holds the consumer's row, if its worker
// is dead. One of this worker is given up: the loop has begun another.
func (c *consumerLoop) lookForZombie(ctx context.Context, session int64) (zombie, error) {
	z, err := c.w.checkpoints.Batch(ctx, c.w.db, c.unit.name, session)
	if err != nil || z == (zombie{}) || z.signature == signature(c.w.id) {
		return z, err
	}
	dead, err := c.w.coord.Dead(ctx, c.w.db, z.worker)
	if err != nil || !dead {
		return zombie{}, err
	}
	return z, nil
}

// endZombie lasts longer than ctx, which ends with the guard's wait: as soon as
// the batch is gone, and before the answer is here.
func (c *consumerLoop) endZombie(ctx context.Context, z zombie) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookLimit)
	defer cancel()
	ended, err := c.w.checkpoints.EndBatch(ctx, c.w.db, c.unit.name, z)
	if ended {
		tell(c.w.observer.DeadBatchEnded, DeadBatch{Consumer: c.unit.name, Worker: z.worker, PID: z.session})
	}
	return err
}
