package legacy

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
)

// leaderKey is the key of the advisory lock that their leader holds.
const leaderKey = 7237492748123847

// Process is one of theirs.
type Process struct {
	ID uuid.UUID
	t  testing.TB
	db *sql.DB
}

// Start registers a process, and its consumers without a worker.
func Start(t testing.TB, db *sql.DB, consumers ...string) *Process {
	t.Helper()
	p := &Process{ID: uuid.New(), t: t, db: db}
	p.exec(`INSERT INTO worker_nodes (worker_id, heartbeat_at, created_at, updated_at) VALUES ($1::uuid, now(), now(), now())`, p.ID.String())
	for _, c := range consumers {
		p.exec(`INSERT INTO consumer_assignments (consumer_name, worker_id, created_at, updated_at) VALUES ($1::text, NULL, now(), now()) ON CONFLICT (consumer_name) DO NOTHING`, c)
		p.exec(`INSERT INTO consumer_checkpoints (consumer_name, last_position, created_at, updated_at) VALUES ($1::text, 0, now(), now()) ON CONFLICT (consumer_name) DO NOTHING`, c)
	}
	return p
}

func (p *Process) exec(query string, args ...any) {
	p.t.Helper()
	if err := p.try(query, args...); err != nil {
		p.t.Fatal(err)
	}
}

func (p *Process) try(query string, args ...any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := p.db.ExecContext(ctx, query, args...); err != nil {
		return fmt.Errorf("a legacy process: %w in %s", err, query)
	}
	return nil
}

// Beat sends a heartbeat.
func (p *Process) Beat() {
	p.t.Helper()
	p.exec(`UPDATE worker_nodes SET heartbeat_at = now(), updated_at = now() WHERE worker_id = $1::uuid`, p.ID.String())
}

// Lead takes the advisory lock of their leader, until the test ends.
func (p *Process) Lead() {
	p.t.Helper()
	tx, err := p.db.BeginTx(context.Background(), nil) // keeps the session
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = tx.Rollback() })
	var got bool
	if err := tx.QueryRow(`SELECT pg_try_advisory_xact_lock($1::bigint)`, int64(leaderKey)).Scan(&got); err != nil || !got {
		p.t.Fatalf("a legacy process does not get the leader's lock: %v, %v", got, err)
	}
}

// Lease takes or prolongs their lease.
func (p *Process) Lease() {
	p.t.Helper()
	p.exec(`
INSERT INTO worker_leader_election AS l (lease_key, leader_id, expires_at, updated_at) VALUES ('leader', $1::uuid, now() + interval '30 seconds', now())
ON CONFLICT (lease_key) DO UPDATE SET leader_id = excluded.leader_id, expires_at = excluded.expires_at, updated_at = now()
WHERE l.leader_id IS NULL OR l.leader_id = excluded.leader_id OR l.expires_at < now()`, p.ID.String())
}

// Assign gives consumers to this process, as their leader does.
func (p *Process) Assign(consumers ...string) {
	p.t.Helper()
	for _, c := range consumers {
		p.exec(`UPDATE consumer_assignments SET worker_id = $1::uuid, updated_at = now() WHERE consumer_name = $2::text`, p.ID.String(), c)
	}
}

// Skipped records that a consumer went past a gap.
func (p *Process) Skipped(consumer string, gap, to, visible int64) {
	p.t.Helper()
	p.exec(`
INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, skip_to_position, highest_visible_position, first_seen_at, created_at)
VALUES ($1::text, $2::uuid, $3::bigint, $4::bigint, $5::bigint, now(), now())`, consumer, p.ID.String(), gap, to, visible)
}

// Leave takes the process off the list. That comes before its last batches end.
func (p *Process) Leave() {
	p.t.Helper()
	if err := <-p.LeaveLater(); err != nil {
		p.t.Fatal(err)
	}
}

// LeaveLater does so in the background.
func (p *Process) LeaveLater() <-chan error {
	left := make(chan error, 1)
	go func() { left <- p.try(`DELETE FROM worker_nodes WHERE worker_id = $1::uuid`, p.ID.String()) }()
	return left
}

// Batch is a batch in flight.
type Batch struct {
	*sql.Tx
	p        *Process
	consumer string
}

// Begin begins a batch. It holds the consumer's assignment, which must be this
// process's, and its checkpoint.
func (p *Process) Begin(consumer string) *Batch {
	p.t.Helper()
	tx, err := p.db.BeginTx(context.Background(), nil)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = tx.Rollback() })
	var owner uuid.NullUUID
	var position int64
	if err := tx.QueryRow(`SELECT worker_id FROM consumer_assignments WHERE consumer_name = $1::text FOR UPDATE`, consumer).Scan(&owner); err != nil || owner.UUID != p.ID {
		p.t.Fatalf("a legacy process does not own consumer %s: %v, %v", consumer, owner, err)
	}
	if err := tx.QueryRow(`SELECT last_position FROM consumer_checkpoints WHERE consumer_name = $1::text FOR UPDATE`, consumer).Scan(&position); err != nil {
		p.t.Fatal(err)
	}
	return &Batch{Tx: tx, p: p, consumer: consumer}
}

// End saves the checkpoint and commits.
func (b *Batch) End(position int64) {
	b.p.t.Helper()
	if _, err := b.Exec(`
INSERT INTO consumer_checkpoints AS c (consumer_name, last_position, created_at, updated_at) VALUES ($1::text, $2::bigint, now(), now())
ON CONFLICT (consumer_name) DO UPDATE SET last_position = greatest(c.last_position, excluded.last_position), updated_at = now()`, b.consumer, position); err != nil {
		b.p.t.Fatal(err)
	}
	if err := b.Commit(); err != nil {
		b.p.t.Fatal(err)
	}
}
