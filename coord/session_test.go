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

	"github.com/pgfrontier/worker/internal/pgtest"
	"github.com/pgfrontier/worker/migrations"
)

// These tests step through sessions by hand, so that things happen in the one
// order in which they could go wrong.

// join opens a session and registers, as Run does.
func join(t *testing.T, cfg Config) *session {
	t.Helper()
	s, err := New(cfg).open(context.Background(), true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	if err := s.register(context.Background()); err != nil {
		t.Fatal(err)
	}
	return s
}

func mustLook(t *testing.T, s *session) view {
	t.Helper()
	v, err := s.look(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	s.leads = v.leads
	return v
}

// beat sends a heartbeat, due or not.
func beat(t *testing.T, s *session) {
	t.Helper()
	s.beaten = time.Time{}
	if !mustLook(t, s).registered {
		t.Fatal("the worker's row is gone")
	}
}

// see returns what a leader sees of a worker.
func see(t *testing.T, leader *session, id uuid.UUID) node {
	t.Helper()
	for _, n := range mustLook(t, leader).nodes {
		if n.ID == id {
			return n
		}
	}
	t.Fatalf("no row of worker %s", id)
	return node{}
}

func lead(t *testing.T, s *session) {
	t.Helper()
	await(t, "leads", func() bool { return mustLook(t, s).leads })
}

func give(unit string, s *session) []change { return []change{{unit, s.cfg.ID}} }

func ownerOf(t *testing.T, db *sql.DB, unit string) string {
	t.Helper()
	return scan[string](t, db, `SELECT worker_id::text FROM consumer_assignments WHERE consumer_name = $1`, unit)
}

// blocked waits until n statements on the assignments or the lease wait for a
// lock.
func blocked(t *testing.T, db *sql.DB, n int) {
	t.Helper()
	await(t, fmt.Sprint(n, " statements wait for a lock"), func() bool {
		return scan[int](t, db, `
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%given%'`) == n
	})
}

// lockRow holds a row until the returned function is called.
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
		leads, _, err := s.assign(context.Background(), changes)
		done <- written{leads, err}
	}()
	return done
}

// A free lock tells of a death only in the life of the server in which the
// worker last sent a heartbeat.
func TestProofOfDeath(t *testing.T) {
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
	leader := join(t, leaderCfg)
	expect := func(when string, proven, held bool) {
		t.Helper()
		lead(t, leader)
		if n := see(t, leader, cfg.ID); !n.Fresh || n.Proven != proven || n.Held != held || n.Protocol != protocolLock {
			t.Errorf("%s: %+v, want proven %v, held %v", when, n, proven, held)
		}
	}
	s := join(t, cfg)
	expect("no token", false, true)
	plantToken(t, db)
	expect("token after the heartbeat", false, true)
	beat(t, s)
	expect("heartbeat after the token", true, true)
	s.close()
	await(t, "the lock is free", func() bool { return !see(t, leader, cfg.ID).Held })
	expect("died", true, false)
	ghost := join(t, cfg)
	expect("back", true, true)
	join(t, cfg) // though its ghost still holds the lock
	ghost.close()
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
	plantToken(t, db)
	expect("a new token", false, false)
	mustExec(t, db, `UPDATE consumer_checkpoints_token SET database = 1`)
	last.close()
	join(t, cfg)
	expect("the token is of a dump", false, true)
}

// The server frees the locks of a process that was stopped.
func TestStoppedProcess(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	if scan[int](t, d.DB, `SELECT current_setting('server_version_num')::int`) < 140000 {
		return // has no idle_session_timeout
	}
	stopped, leader := join(t, quick(config(d.DB, six...))), join(t, config(d.DB, six...))
	lead(t, stopped)
	await(t, "the locks of a silent session are free", func() bool {
		return mustLook(t, leader).leads && !see(t, leader, stopped.cfg.ID).Held
	})
}

// A lock that somebody else has taken is named.
func TestForeignLock(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	cfg := config(d.DB, six...)
	conn, err := d.DB.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	key := lockKey("worker", "public", "worker_nodes", cfg.ID.String())
	if _, err := conn.ExecContext(t.Context(), `SELECT pg_advisory_lock($1::bigint)`, key); err != nil {
		t.Fatal(err)
	}
	if err := New(cfg).Register(t.Context()); err == nil || errors.Is(err, ErrTransactionPooling) {
		t.Errorf("Register: %v", err)
	}
}

// A session is given up when two comparisons in a row, a heartbeat apart, find it
// on another server: after a crash, one may not have noticed yet.
func TestSessionElsewhereIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := []bool{false, true, false, true, true}
		asked := 0
		s := &session{cfg: Config{HeartbeatInterval: time.Second, Elsewhere: func(incarnation string) bool {
			if incarnation != "of a heartbeat" {
				t.Errorf("asked about %q", incarnation)
			}
			asked++
			return answers[asked-1]
		}}}
		for i := range answers {
			time.Sleep(time.Second)
			s.beaten = time.Now()
			v := view{beat: true, incarnation: "of a heartbeat"}
			if err := s.locate(v); errors.Is(err, errElsewhere) != (i == len(answers)-1) {
				t.Errorf("comparison %d: %v", i, err)
			}
			time.Sleep(time.Second / 2)
			s.beaten = time.Now() // a heartbeat before it is due
			if err := s.locate(v); err != nil || asked != i+1 {
				t.Errorf("soon after comparison %d it has asked %d times: %v", i, asked, err)
			}
			if err := s.locate(view{}); err != nil || asked != i+1 {
				t.Errorf("after comparison %d, without a heartbeat, it has asked %d times: %v", i, asked, err)
			}
		}
	})
}

// The looks between two heartbeats are evenly spread: none is made for the
// heartbeat alone.
func TestHeartbeatsNeedNoLookOfTheirOwn(t *testing.T) {
	for interval, want := range map[time.Duration]int{
		100 * time.Millisecond: 1, time.Second: 1, 1300 * time.Millisecond: 2, 5 * time.Second: 6, time.Minute: 75,
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &session{cfg: Config{HeartbeatInterval: interval}, beaten: time.Now()}
			looks := 0
			for due := s.beaten.Add(interval); time.Now().Before(due); looks++ {
				pause := s.untilLook()
				if pause > looking*3/2 {
					t.Errorf("every %v: a pause of %v", interval, pause)
				}
				time.Sleep(pause)
			}
			if looks != want {
				t.Errorf("every %v: %d looks, want %d", interval, looks, want)
			}
		})
	}
}

// A heartbeat returns the incarnation of the server that took it; a look between
// two heartbeats does not ask for it.
func TestHeartbeatReturnsTheIncarnation(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, d *pgtest.Database, strategy LeaderStrategy) {
		cfg := withStrategy(config(d.DB, six...), strategy)
		cfg.Incarnation = `(SELECT token::text FROM consumer_checkpoints_token)`
		s := join(t, cfg)
		lead(t, s)
		s.beaten = time.Time{}
		token := scan[string](t, d.DB, `SELECT token::text FROM consumer_checkpoints_token`)
		if v := mustLook(t, s); !v.beat || v.incarnation != token {
			t.Errorf("a heartbeat shows %v, %q, want %q", v.beat, v.incarnation, token)
		}
		s.overdue = false
		if v := mustLook(t, s); v.beat || v.incarnation != "" {
			t.Errorf("a look shows %v, %q", v.beat, v.incarnation)
		}
		mustExec(t, d.DB, `DELETE FROM consumer_checkpoints_token`)
		s.beaten = time.Time{}
		if v := mustLook(t, s); !v.beat || v.incarnation != "" {
			t.Errorf("without a token a heartbeat shows %v, %q", v.beat, v.incarnation)
		}
	})
}
