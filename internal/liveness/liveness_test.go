package liveness

import (
	"context"
	"database/sql"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/incarnation"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// newTables creates the two tables that the package needs, for one test.
func newTables(t *testing.T) (d *pgtest.Database, nodes, token ident.Table) {
	d = pgtest.Empty(t)
	d.Exec(t, `CREATE TABLE nodes (worker_id UUID PRIMARY KEY, heartbeat_at TIMESTAMPTZ NOT NULL, updated_at TIMESTAMPTZ,
		status JSONB, kinds TEXT[], hostname TEXT, pid INT, build TEXT, protocol INT, heartbeat_interval INTERVAL, heartbeat_timeout INTERVAL, drain_requested_at TIMESTAMPTZ, created_at TIMESTAMPTZ DEFAULT clock_timestamp())`)
	d.Exec(t, `CREATE TABLE nodes_stopped (worker_id UUID, stopped_at TIMESTAMPTZ, how TEXT, declared_by UUID, hostname TEXT, pid INT, build TEXT, started_at TIMESTAMPTZ)`)
	d.Exec(t, `CREATE UNLOGGED TABLE nodes_token ("only" BOOLEAN PRIMARY KEY, token UUID NOT NULL, database OID NOT NULL)`)
	token = ident.Table{Name: "nodes_token"}
	d.Exec(t, incarnation.InsertToken(token), scan(t, d.DB, `SELECT oid::text FROM pg_database WHERE datname = current_database()`), uuid.NewString())
	return d, ident.Table{Name: "nodes"}, token
}

// poll executes a statement as a worker does: its own columns follow the columns of the
// package.
func poll(t *testing.T, s *Session) (v Self, nodes []Node) {
	t.Helper()
	query := `WITH given AS (SELECT $1::uuid AS id, $2::bigint * interval '1 microsecond' AS timeout), ` + s.BeatSQL("$3", "$4") + `
SELECT ` + s.SelfSQL("$3") + `, ` + s.NodesSQL("$5") + `, ` + HeldSQL
	v, err := s.Poll(t.Context(), func(ctx context.Context, beat bool, status string) (v Self, err error) {
		known, err := s.Known()
		if err != nil {
			return v, err
		}
		var rows, locks string
		var held []int64
		err = s.Conn.QueryRowContext(ctx, query, s.ID.String(), s.HeartbeatTimeout.Microseconds(), beat, status, known).Scan(append(v.Into(), &rows, &locks)...)
		if err != nil {
			return v, err
		}
		nodes = nil
		if err := json.Unmarshal([]byte(rows), &nodes); err != nil {
			return v, err
		}
		if err := json.Unmarshal([]byte(locks), &held); err != nil {
			return v, err
		}
		s.Complete(nodes, held)
		return v, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return v, nodes
}

// join opens a session and registers.
func join(t *testing.T, cfg Config) *Session {
	t.Helper()
	s, err := New(cfg).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if err := s.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// A registered worker is alive, with its names, until its lock is free or its heartbeat is too
// old. The test needs only two tables.
func TestWorkerIsAliveUntilItsLockIsFree(t *testing.T) {
	for name, lock := range map[string]bool{"with a lock": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			d, nodes, token := newTables(t)
			config := func(names ...string) Config {
				return Config{DB: pgdriver.Pool{DB: d.DB}, ID: uuid.New(), Nodes: nodes, Token: token, Column: "kinds", Names: names,
					HeartbeatInterval: 5 * time.Second, HeartbeatTimeout: 30 * time.Second, Lock: lock}
			}
			me, other := join(t, config("a")), join(t, config("b", "c"))
			judge := func() (alive []Node) {
				_, nodes := poll(t, me)
				watch, _, _ := Watch{}.Judge(nodes, time.Now())
				_, alive, _ = watch.Judge(nodes, time.Now().Add(Confirmation))
				return alive
			}
			for range 2 { // at the second poll the names are known
				alive := judge()
				i := slices.IndexFunc(alive, func(n Node) bool { return n.ID == other.ID })
				if len(alive) != 2 || i < 0 || !slices.Equal(alive[i].Names, other.Names) {
					t.Fatalf("alive are %+v", alive)
				}
			}
			dead := func() bool {
				t.Helper()
				dead, err := me.registry.Dead(t.Context(), pgdriver.Pool{DB: d.DB}, other.ID, 0)
				if err != nil {
					t.Fatal(err)
				}
				return dead
			}
			if dead() {
				t.Error("a live worker is dead")
			}
			other.Close()
			if !lock {
				if dead() || len(judge()) != 2 {
					t.Error("a worker without a lock is dead before its heartbeat is old")
				}
				d.Exec(t, `UPDATE nodes SET heartbeat_at = clock_timestamp() - interval '31 s' WHERE worker_id = $1::uuid`, other.ID.String())
			}
			for deadline := time.Now().Add(pgtest.Patience); !dead(); time.Sleep(5 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the worker did not die in time")
				}
			}
			if alive := judge(); len(alive) != 1 || alive[0].ID != me.ID {
				t.Errorf("alive are %+v", alive)
			}
		})
	}
}

// The lock does not prove a death after a heartbeat from before the token. The second poll
// sends another heartbeat, long before it is due.
func TestHeartbeatOlderThanTheTokenIsRepeated(t *testing.T) {
	d, nodes, token := newTables(t)
	me := join(t, Config{DB: pgdriver.Pool{DB: d.DB}, ID: uuid.New(), Nodes: nodes, Token: token, Column: "kinds",
		HeartbeatInterval: time.Hour, HeartbeatTimeout: 2 * time.Hour, Lock: true})
	polls := func(when string, want ...bool) {
		t.Helper()
		for i, beat := range want {
			if v, _ := poll(t, me); v.Beat != beat {
				t.Errorf("%s, poll %d sent a heartbeat: %v, want %v", when, i+1, v.Beat, beat)
			}
		}
	}
	polls("after the first heartbeat", false, false)
	d.Exec(t, `UPDATE nodes_token SET token = gen_random_uuid()`)
	polls("with another token", false, true, false)
}

// A heartbeat returns the incarnation of the server that took it. A statement between two
// heartbeats does not return it.
func TestHeartbeatReturnsTheIncarnation(t *testing.T) {
	for _, lock := range []bool{true, false} {
		d, nodes, token := newTables(t)
		s := join(t, Config{DB: pgdriver.Pool{DB: d.DB}, ID: uuid.New(), Nodes: nodes, Token: token, Column: "kinds",
			HeartbeatInterval: time.Hour, HeartbeatTimeout: 2 * time.Hour, Lock: lock, Incarnation: `(SELECT token::text FROM nodes_token)`})
		beat := func() Self {
			s.Beaten = time.Time{}
			v, _ := poll(t, s)
			return v
		}
		want := scan(t, d.DB, `SELECT token::text FROM nodes_token`)
		if v := beat(); !v.Beat || v.incarnation != want {
			t.Errorf("lock %v: a heartbeat shows %+v, want %q", lock, v, want)
		}
		if v, _ := poll(t, s); v.Beat || v.incarnation != "" {
			t.Errorf("lock %v: between two heartbeats: %+v", lock, v)
		}
		d.Exec(t, `DELETE FROM nodes_token`)
		if v := beat(); !v.Beat || v.incarnation != "" {
			t.Errorf("lock %v: without a token a heartbeat shows %+v", lock, v)
		}
	}
}

// A worker whose row a trigger drops is not registered, and says so.
func TestRegistrationThatATriggerDrops(t *testing.T) {
	d, nodes, token := newTables(t)
	s := join(t, Config{DB: pgdriver.Pool{DB: d.DB}, ID: uuid.New(), Nodes: nodes, Token: token, Column: "kinds", HeartbeatInterval: time.Hour, HeartbeatTimeout: 2 * time.Hour})
	d.Exec(t, `DELETE FROM nodes`)
	d.DropRows(t, "INSERT", "nodes")
	if err := s.Register(t.Context()); err == nil || !strings.Contains(err.Error(), "leaves out rows of nodes without an error") {
		t.Errorf("Register returns %v", err)
	}
}

func scan(t *testing.T, db *sql.DB, query string) (v string) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), query).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// A worker that reads its own heartbeat in the future sends another at once.
func TestHeartbeatInTheFutureIsRepeated(t *testing.T) {
	for name, lock := range map[string]bool{"with a lock": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			d, nodes, token := newTables(t)
			me := join(t, Config{DB: pgdriver.Pool{DB: d.DB}, ID: uuid.New(), Nodes: nodes, Token: token, Column: "kinds",
				HeartbeatInterval: time.Hour, HeartbeatTimeout: 3 * time.Hour, Lock: lock})
			d.Exec(t, `UPDATE nodes SET heartbeat_at = 'infinity'`)
			for _, want := range []bool{false, true, false} {
				if v, _ := poll(t, me); v.Beat != want {
					t.Errorf("a poll sent a heartbeat: %v, want %v", v.Beat, want)
				}
			}
		})
	}
}

// Each worker is judged by its own timeout. A worker without a timeout is judged by the
// timeout of the judging worker.
func TestEachWorkerHasItsOwnTimeout(t *testing.T) {
	d, nodes, token := newTables(t)
	config := func(interval, timeout time.Duration, lock bool) Config {
		return Config{DB: pgdriver.Pool{DB: d.DB}, ID: uuid.New(), Nodes: nodes, Stopped: ident.Table{Name: "nodes_stopped"}, Token: token, Column: "kinds", HeartbeatInterval: interval, HeartbeatTimeout: timeout, Lock: lock}
	}
	me := join(t, config(time.Second, 10*time.Second, true))
	slow, old, far := join(t, config(20*time.Second, time.Minute, false)), join(t, config(20*time.Second, time.Minute, false)), join(t, config(time.Hour, 3*time.Hour, false))
	d.Exec(t, `UPDATE nodes SET heartbeat_timeout = NULL, heartbeat_interval = NULL WHERE worker_id = $1::uuid`, old.ID.String())
	d.Exec(t, `UPDATE nodes SET heartbeat_timeout = '1000000 years' WHERE worker_id = $1::uuid`, far.ID.String())
	expect := func(age string, slowDead, oldDead, farDead bool) {
		t.Helper()
		d.Exec(t, `UPDATE nodes SET heartbeat_at = clock_timestamp() - $1::text::interval WHERE worker_id <> $2::uuid`, age, me.ID.String())
		_, seen := poll(t, me)
		_, alive, _ := Watch{}.Judge(seen, time.Now())
		for s, want := range map[*Session]bool{slow: slowDead, old: oldDead, far: farDead} {
			if judged := !slices.ContainsFunc(alive, func(n Node) bool { return n.ID == s.ID }); judged != want {
				t.Errorf("after %s the leader judges the worker with the timeout %v as dead: %v", age, s.HeartbeatTimeout, judged)
			}
			if dead, err := me.registry.Dead(t.Context(), pgdriver.Pool{DB: d.DB}, s.ID, OwnGrace); err != nil || dead != want {
				t.Errorf("after %s the worker with the timeout %v is dead: %v, %v", age, s.HeartbeatTimeout, dead, err)
			}
		}
	}
	expect("5 s", false, false, false)
	expect("15 s", false, true, false)
	expect("65 s", true, true, false)
	expect("25 h", true, true, true)

	d.Exec(t, `UPDATE nodes SET heartbeat_at = clock_timestamp() - interval '100 s' WHERE worker_id <> $1::uuid`, me.ID.String())
	d.Exec(t, `INSERT INTO nodes_stopped (worker_id, stopped_at, how) SELECT gen_random_uuid(), clock_timestamp() + m * interval '1 minute', 'stopped' FROM unnest('{-16,-14,14,16}'::int[]) AS m`)
	if n, err := me.Clean(t.Context()); err != nil || n != 1 {
		t.Errorf("%d rows were removed, %v", n, err)
	}
	if told := scan(t, d.DB, `SELECT string_agg(concat_ws(' ', how, declared_by, started_at < stopped_at), ', ' ORDER BY stopped_at) FROM nodes_stopped`); told != "stopped, dead "+me.ID.String()+" t, stopped" {
		t.Errorf("the stopped workers are recorded as %s", told)
	}
	if left := scan(t, d.DB, `SELECT count(*) FROM nodes WHERE worker_id = '`+old.ID.String()+`'`); left != "0" {
		t.Error("another row than that of the silent worker was removed")
	}

	// Without its lock, a worker that has lost its connection has the grace of its own
	// interval. The grace of the asking worker is 2.1 s.
	asks, locked := join(t, config(100*time.Millisecond, 6*time.Second, true)), join(t, config(3*time.Second, 6*time.Second, true))
	me.Close()
	d.Exec(t, `DELETE FROM nodes WHERE protocol < 2`)
	locked.Close()
	if !pgtest.Poll(func() bool {
		return scan(t, d.DB, `SELECT clock_timestamp() - pg_postmaster_start_time() > interval '6 s'`) == "true"
	}) {
		t.Fatal("the server did not become older than the heartbeats")
	}
	if !pgtest.Poll(func() bool {
		return scan(t, d.DB, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND `+pgtest.Here) == "1"
	}) {
		t.Fatal("the worker's lock did not become free")
	}
	for age, want := range map[string]bool{"2.6 s": false, "5.2 s": true} {
		d.Exec(t, `UPDATE nodes SET heartbeat_at = clock_timestamp() - $1::text::interval WHERE worker_id = $2::uuid`, age, locked.ID.String())
		dead, err := asks.registry.Dead(t.Context(), pgdriver.Pool{DB: d.DB}, locked.ID, OwnGrace)
		if err != nil || dead != want {
			t.Errorf("without its lock, %s after its heartbeat, the worker is dead: %v, %v", age, dead, err)
		}
	}
}
