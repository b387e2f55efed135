package coord

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// A worker is dead in three cases: it has no row, it is silent, or its lock is free and its
// next heartbeat is overdue. The lock counts only if the worker held it in this incarnation of
// the server.
func TestDead(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	asker := New(config(d.DB))
	if _, err := asker.Dead(t.Context(), d.DB, uuid.New()); err == nil {
		t.Error("Dead returned no error before Register, when the workers' table is unknown")
	}
	if err := asker.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer asker.Leave(context.Background(), false)
	dead := func(cfg Config) bool {
		t.Helper()
		dead, err := asker.Dead(t.Context(), d.DB, cfg.ID)
		if err != nil {
			t.Fatal(err)
		}
		return dead
	}
	expect := func(when string, cfg Config, want bool) {
		t.Helper()
		if got := dead(cfg); got != want {
			t.Errorf("%s: dead is %v", when, got)
		}
	}
	locked, leased, unproven := config(d.DB), withLease(config(d.DB), true), config(d.DB)
	early := join(t, unproven)
	insertToken(t, d.DB)
	s := join(t, locked)
	join(t, leased).Close()
	expect("alive", locked, false)
	expect("alive without a lock", leased, false)
	expect("the asker", asker.cfg, false)
	expect("unknown", config(d.DB), true)

	s.Close()
	early.Close()
	await(t, "the locks of both are free", func() bool {
		return scan[int](t, d.DB, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) == 1
	})
	expect("its lock is free, its heartbeat young", locked, false)
	for cfg, want := range map[*Config]bool{&locked: true, &unproven: false, &leased: false} {
		if got, err := asker.alive.Dead(t.Context(), pgdriver.Pool{DB: d.DB}, cfg.ID, 0); err != nil || got != want {
			t.Errorf("without grace, lease %v, proven %v: dead is %v, %v", cfg.Lease, cfg != &unproven, got, err)
		}
	}
	s = join(t, locked)
	expect("back", locked, false)

	mustExec(t, d.DB, `UPDATE worker_nodes SET heartbeat_at = clock_timestamp() - interval '20 seconds'`)
	expect("old, and not too old", locked, false)
	expect("old, and not too old, without a lock", leased, false)
	mustExec(t, d.DB, `UPDATE worker_nodes SET heartbeat_at = clock_timestamp() - interval '40 seconds'`)
	expect("silent, though its lock is held", locked, true)
	expect("silent, without a lock", leased, true)
	beat(t, s)
	expect("a heartbeat", locked, false)
	mustExec(t, d.DB, `DELETE FROM worker_nodes`)
	expect("without a row", locked, true)
}

// A statement that takes work of dead workers checks again that they are dead: a worker may
// have come back meanwhile.
func TestDeadSQLChecksAgain(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	asker := New(config(d.DB))
	if err := asker.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer asker.Leave(context.Background(), false)
	alive, gone := config(d.DB), uuid.New()
	defer join(t, alive).Close()
	with, args, err := asker.DeadSQL([]uuid.UUID{alive.ID, gone}, 0)
	if err != nil {
		t.Fatal(err)
	}
	var dead string
	if err := d.DB.QueryRowContext(t.Context(), with+` SELECT string_agg(worker_id::text, ' ') FROM dead`, args...).Scan(&dead); err != nil || dead != gone.String() {
		t.Errorf("dead are %q, %v; want %v only", dead, err, gone)
	}
}

// A connection on which the query failed leaves the pool. On a standby the query would fail
// each time.
func TestDeadDiscardsAFailedConnection(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	asker := New(config(d.DB))
	if err := asker.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer asker.Leave(context.Background(), false)
	db := (&line{}).open(t, d.URL)
	db.SetMaxOpenConns(1)
	ask := func() (backend int, err error) {
		_, err = asker.Dead(t.Context(), db, asker.cfg.ID)
		return scan[int](t, db, `SELECT pg_backend_pid()`), err
	}
	first, err := ask()
	if err != nil {
		t.Fatal(err)
	}
	if same, err := ask(); err != nil || same != first {
		t.Errorf("after an answer the pool has another connection: %v", err)
	}
	mustExec(t, d.DB, `ALTER TABLE worker_nodes RENAME TO away`)
	if next, err := ask(); err == nil || next == first {
		t.Errorf("after a failure the connection is still in the pool: %v", err)
	}
	mustExec(t, d.DB, `ALTER TABLE away RENAME TO worker_nodes`)
}

// A worker whose heartbeat lies in the future is dead after its HeartbeatTimeout, also for
// workers that ask only once. The leader sets such a heartbeat back.
func TestHeartbeatInTheFuture(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, d *pgtest.Database, leased bool) {
		leader := start(t, withLease(brisk(config(d.DB, "a")), leased))
		leader.awaitAssigned("a")
		gone := uuid.New()
		mustExec(t, d.DB, `INSERT INTO worker_nodes (worker_id, heartbeat_at, heartbeat_interval, heartbeat_timeout, consumers, protocol, partitions)
			VALUES ($1::uuid, 'infinity', '1 s', '2 s', '{a}', 1, '{}')`, gone.String())
		if dead, err := leader.Dead(t.Context(), d.DB, gone); err != nil || dead {
			t.Errorf("the worker is dead at once: %v, %v", dead, err)
		}
		await(t, "it is dead", func() bool {
			dead, err := leader.Dead(t.Context(), d.DB, gone)
			return err == nil && dead
		})
		leader.awaitAssigned("a")
	})
}

// A lease lasts for its holder's HeartbeatTimeout, whatever the HeartbeatTimeout of another
// worker is.
func TestLeaseOfAWorkerWithALongerTimeout(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	slow := withLease(config(d.DB, "a"), true)
	slow.HeartbeatTimeout = time.Hour
	leader := start(t, slow)
	await(t, "it leads", func() bool { return leader.Status().Leader })
	quick := start(t, withLease(brisk(config(d.DB, "a")), true))
	beats := func() time.Time { return quick.Status().LastHeartbeat }
	for range 5 { // each claims an expired lease
		last := beats()
		await(t, "another heartbeat", func() bool { return beats().After(last) })
	}
	if quick.Status().Leader || !leader.Status().Leader || scan[int](t, d.DB, `SELECT term FROM worker_leader_election`) != 1 {
		t.Errorf("the lease was taken from its holder: %+v", quick.Status())
	}
}
