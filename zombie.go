package worker

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/store"
)

// guardPatience is how long a guard waits before somebody looks what for, and
// the time between two looks.
const guardPatience = time.Second

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

// blockers finds, among those that the session $1 waits for, the batch of the
// consumer $2.
func blockers(t tables) string {
	const held = `(
	SELECT pid, (classid::bigint << 32) | objid::bigint AS key FROM pg_locks
	WHERE locktype = 'advisory' AND objsubid = 1 AND mode = 'ShareLock' AND granted
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
)`
	table := `'` + strings.ReplaceAll(t.checkpoints.SQL(), `'`, `''`) + `'::regclass`
	return `
FROM unnest(pg_blocking_pids($1::int)) AS b(pid)
JOIN ` + held + ` AS worker ON worker.pid = b.pid
JOIN ` + held + ` AS batch ON batch.pid = b.pid AND batch.key = ` + signedFor("$2::text", "worker.key", table)
}

// endBlocker ends the session $3 if it is still such a blocker, signed by $4.
func endBlocker(t tables) string {
	return `
SELECT pg_terminate_backend(b.pid)` + blockers(t) + `
WHERE b.pid = $3::int AND worker.key = $4::bigint`
}

// findBlocker also names the worker, unless it has no row any more.
func findBlocker(t tables) string {
	return `
SELECT b.pid, worker.key, coalesce((
	SELECT worker_id::text FROM ` + t.nodes.SQL() + `
	WHERE ('x' || left(replace(worker_id::text, '-', ''), 16))::bit(64)::bigint = worker.key), '')` + blockers(t) + `
LIMIT 1`
}

// zombie is a batch that somebody's guard waits for. Its zero value is none.
type zombie struct {
	session   int64 // the pid of the server's process
	signature int64
	worker    uuid.UUID // nil: it has no row any more
}

// Blocker returns the batch that the guard of a session waits for.
func (c checkpoints) Blocker(ctx context.Context, q store.Querier, unit string, session int64) (z zombie, err error) {
	var worker string
	err = q.QueryRowContext(ctx, c.blocker, session, unit).Scan(&z.session, &z.signature, &worker)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return zombie{}, nil
	case err == nil && worker != "":
		z.worker, err = uuid.Parse(worker)
	}
	return z, err
}

// EndBlocker ends the session of a batch that the guard of a session still
// waits for.
func (c checkpoints) EndBlocker(ctx context.Context, q store.Querier, unit string, session int64, z zombie) (ended bool, err error) {
	err = q.QueryRowContext(ctx, c.endBlocker, session, unit, z.session, z.signature).Scan(&ended)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return ended, err
}

// watchGuard looks what a guard on conn waits for, if it waits, until ctx ends.
// The function that it returns waits for the end of that. The batch of a dead
// worker would keep its consumer until the server ends it for being idle.
func (c *consumerLoop) watchGuard(ctx context.Context, conn *sql.Conn) (wait func()) {
	session := c.ownSession(conn)
	if session == 0 {
		return func() {}
	}
	done := make(chan struct{})
	timer := time.AfterFunc(guardPatience, func() {
		defer close(done)
		c.endZombies(ctx, session)
	})
	return func() {
		if !timer.Stop() {
			<-done
		}
	}
}

// ownSession is the pid of the server's process behind conn, without asking it.
// It is 0 where nothing may be ended: with the lease, as behind a
// transaction-pooling proxy a session is not a worker's own, and with lib/pq,
// which does not tell.
func (c *consumerLoop) ownSession(conn *sql.Conn) (session int64) {
	if c.w.cfg.LeaderStrategy != LeaderStrategyAdvisory {
		return 0
	}
	_ = conn.Raw(func(driverConn any) error { // if it fails, so will the guard
		if pg, ok := driverConn.(*stdlib.Conn); ok {
			session = int64(pg.Conn().PgConn().PID())
		}
		return nil
	})
	return session
}

// endZombies ends the batch that the guard waits for if two looks in a row
// find that its worker is dead.
func (c *consumerLoop) endZombies(ctx context.Context, session int64) {
	report := func(err error) {
		if err != nil && ctx.Err() == nil {
			c.w.cfg.Logger.Error(ctx, "could not look what the guard of a batch waits for", "consumer", c.unit.name, "error", err)
		}
	}
	whenSeenTwice(ctx,
		func() zombie {
			z, err := c.lookForZombie(ctx, session)
			report(err)
			return z
		},
		func(z zombie) { report(c.endZombie(ctx, session, z)) })
}

// whenSeenTwice looks until ctx ends, and ends what two looks in a row show.
func whenSeenTwice(ctx context.Context, look func() zombie, end func(zombie)) {
	for suspect := (zombie{}); ; {
		z := look()
		if z == suspect && z != (zombie{}) {
			end(z)
		}
		suspect = z
		if !backoff.Sleep(ctx, guardPatience) {
			return
		}
	}
}

// lookForZombie returns what the guard waits for, if its worker is dead.
func (c *consumerLoop) lookForZombie(ctx context.Context, session int64) (zombie, error) {
	z, err := c.w.checkpoints.Blocker(ctx, c.w.db, c.unit.name, session)
	if err != nil || z == (zombie{}) {
		return zombie{}, err
	}
	dead, err := c.w.coord.Dead(ctx, c.w.db, z.worker)
	if err != nil || !dead {
		return zombie{}, err
	}
	return z, nil
}

// endZombie lasts longer than ctx, which ends with the guard's wait: as soon as
// the batch is gone, and before the answer is here.
func (c *consumerLoop) endZombie(ctx context.Context, session int64, z zombie) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), guardPatience)
	defer cancel()
	ended, err := c.w.checkpoints.EndBlocker(ctx, c.w.db, c.unit.name, session, z)
	if ended {
		c.w.cfg.Logger.Info(ctx, "ended the batch of a dead worker that kept a consumer from going on",
			"consumer", c.unit.name, "dead_worker", z.worker, "session", z.session)
	}
	return err
}
