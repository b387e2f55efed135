package coord

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/liveness"
	"github.com/pgfrontier/worker/migrations"
)

// These tests step through sessions by hand, in the only order of statements in which they could fail.

// join opens a session and registers, as Run does.
func join(t *testing.T, cfg Config) *session {
	t.Helper()
	c := New(cfg)
	s, err := c.session(c.alive.Open(context.Background()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if err := s.Register(context.Background()); err != nil {
		t.Fatal(err)
	}
	return s
}

func mustPoll(t *testing.T, s *session) view {
	t.Helper()
	v, err := s.poll(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	s.leads = v.leads
	return v
}

// beat sends a heartbeat, due or not.
func beat(t *testing.T, s *session) {
	t.Helper()
	s.Beaten = time.Time{}
	if !mustPoll(t, s).Registered {
		t.Fatal("the worker's row is gone")
	}
}

// see returns what a leader reads about a worker.
func see(t *testing.T, leader *session, id uuid.UUID) liveness.Node {
	t.Helper()
	for _, n := range mustPoll(t, leader).nodes {
		if n.ID == id {
			return n
		}
	}
	t.Fatalf("no row of worker %s", id)
	return liveness.Node{}
}

func lead(t *testing.T, s *session) {
	t.Helper()
	await(t, "leads", func() bool { return mustPoll(t, s).leads })
}

func give(unit string, s *session) []change { return []change{{Unit: unit, Worker: s.cfg.ID}} }

func ownerOf(t *testing.T, db *sql.DB, unit string) string {
	t.Helper()
	return scan[string](t, db, `SELECT worker_id::text FROM consumer_assignments WHERE consumer_name = $1`, unit)
}

// blocked waits until n statements on the assignments or the lease wait for a lock.
func blocked(t *testing.T, db *sql.DB, n int) {
	t.Helper()
	await(t, fmt.Sprint(n, " statements wait for a lock"), func() bool {
		return scan[int](t, db, `
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%given%'`) == n
	})
}

// lockRow locks a row until the returned function is called.
func lockRow(t *testing.T, db *sql.DB, query string, args ...any) (release func()) {
	t.Helper()
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	if _, err := tx.Exec(query, args...); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
	}
}

type written struct {
	leads bool
	err   error
}

// assignLater runs assign in the background.
func assignLater(s *session, changes []change) <-chan written {
	done := make(chan written, 1)
	go func() {
		leads, _, err := s.assign(context.Background(), next{changes: changes})
		done <- written{leads, err}
	}()
	return done
}

// A free lock proves a death only in the incarnation of the worker's last heartbeat.
func TestFreeLockProvesDeathInOneIncarnation(t *testing.T) {
	t.Parallel()
	server := pgtest.OwnServer(t, nil)
	db := (&line{}).open(t, server.URL(""))
	db.SetMaxIdleConns(0)
	tables := migrations.DefaultConfig()
	if err := migrations.Apply(t.Context(), db, &tables); err != nil {
		t.Fatal(err)
	}
	restart := func() {
		t.Helper()
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	leaderCfg, cfg := config(db, six...), config(db, six...)
	leaderCfg.HeartbeatTimeout, cfg.HeartbeatTimeout = time.Hour, time.Hour
	leader := join(t, leaderCfg)
	expect := func(when string, proven, held bool) {
		t.Helper()
		lead(t, leader)
		if n := see(t, leader, cfg.ID); !n.Fresh || n.Proven != proven || n.Held != held || n.Protocol != liveness.ProtocolLock {
			t.Errorf("%s: %+v, want proven %v, held %v", when, n, proven, held)
		}
	}
	s := join(t, cfg)
	expect("no token", false, true)
	insertToken(t, db)
	expect("token after the heartbeat", false, true)
	beat(t, s)
	expect("heartbeat after the token", true, true)
	s.Close()
	await(t, "the lock is free", func() bool { return !see(t, leader, cfg.ID).Held })
	expect("died", true, false)
	ghost := join(t, cfg)
	expect("back", true, true)
	join(t, cfg) // although the old session still holds the lock
	ghost.Close()
	expect("its ghost is gone", true, true)

	restart()
	leader = join(t, leaderCfg)
	expect("the server was restarted", false, false)
	last := join(t, cfg)
	expect("back after the restart", true, true)

	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	restart()
	leader = join(t, leaderCfg)
	expect("the server crashed", false, false)
	insertToken(t, db)
	expect("a new token", false, false)
	mustExec(t, db, `UPDATE consumer_checkpoints_token SET database = 1`)
	last.Close()
	join(t, cfg)
	expect("the token is of a dump", false, true)
}

// The server frees the locks of a stopped process.
func TestServerFreesLocksOfAStoppedProcess(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	if scan[int](t, d.DB, `SELECT current_setting('server_version_num')::int`) < 140000 {
		return // no idle_session_timeout
	}
	stopped, leader := join(t, quick(config(d.DB, six...))), join(t, config(d.DB, six...))
	await(t, "leads", func() bool {
		v, err := stopped.poll(t.Context())
		if err != nil { // the server has freed them already
			stopped = join(t, quick(config(d.DB, six...)))
		}
		return v.leads
	})
	await(t, "the locks of a silent session are free", func() bool {
		return mustPoll(t, leader).leads && !see(t, leader, stopped.cfg.ID).Held
	})
}

// Register names a lock that another session holds.
func TestForeignLockIsNamed(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	cfg := config(d.DB, six...)
	conn, err := d.DB.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	key := liveness.Home{Schema: "public", Table: "worker_nodes"}.WorkerKey(cfg.ID)
	if _, err := conn.ExecContext(t.Context(), `SELECT pg_advisory_lock($1::bigint)`, key); err != nil {
		t.Fatal(err)
	}
	if err := New(cfg).Register(t.Context()); err == nil || errors.Is(err, errTransactionPooling) {
		t.Errorf("Register: %v", err)
	}
}

// The polls between two heartbeats are evenly spaced. No poll serves the heartbeat alone.
func TestHeartbeatsNeedNoExtraPoll(t *testing.T) {
	for interval, want := range map[time.Duration]int{
		100 * time.Millisecond: 1, time.Second: 1, 1300 * time.Millisecond: 2, 5 * time.Second: 6, time.Minute: 75,
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &session{cfg: Config{HeartbeatInterval: interval}, Session: &liveness.Session{Beaten: time.Now()}}
			polls := 0
			for due := s.Beaten.Add(interval); time.Now().Before(due); polls++ {
				pause := s.untilPoll()
				if pause > pollPause*3/2 {
					t.Errorf("every %v: a pause of %v", interval, pause)
				}
				time.Sleep(pause)
			}
			if polls != want {
				t.Errorf("every %v: %d polls, want %d", interval, polls, want)
			}
		})
	}
}
