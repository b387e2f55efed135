package coord

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/pgtest"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
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

// A leader whose session is gone cannot write, though it still believes.
func TestDeposedByLock(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	a, b := join(t, config(d.DB, six...)), join(t, config(d.DB, six...))
	lead(t, a)
	if mustLook(t, b).leads {
		t.Fatal("both lead")
	}
	if leads, _, err := b.assign(t.Context(), give("x", b)); leads || err != nil {
		t.Fatalf("a follower writes: %v, %v", leads, err)
	}
	mustExec(t, d.DB, `SELECT pg_terminate_backend($1::int)`, a.backend)
	lead(t, b)
	if !a.leads {
		t.Fatal("the test wants two that believe to lead")
	}
	if leads, _, err := b.assign(t.Context(), give("x", b)); !leads || err != nil {
		t.Fatalf("the leader cannot write: %v, %v", leads, err)
	}
	if leads, _, err := a.assign(t.Context(), give("x", a)); leads || err == nil {
		t.Errorf("the former leader writes: %v, %v", leads, err)
	}
	if got := ownerOf(t, d.DB, "x"); got != b.cfg.ID.String() {
		t.Error("the former leader's assignment stands")
	}
}

// The leader's connection ends while its write waits for a row: the write does
// not happen, and its successor's does.
func TestDeposedInTheMiddle(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	a, b := join(t, config(d.DB, six...)), join(t, config(d.DB, six...))
	lead(t, a)
	release := lockRow(t, d.DB, `INSERT INTO consumer_assignments (consumer_name, worker_id) VALUES ('x', gen_random_uuid())`)
	late := assignLater(a, append(give("w", a), give("x", a)...))
	blocked(t, d.DB, 1)
	if mustLook(t, b).leads {
		t.Fatal("leads while the leader writes")
	}
	mustExec(t, d.DB, `SELECT pg_terminate_backend($1::int)`, a.backend)
	if w := <-late; w.leads || w.err == nil {
		t.Fatalf("the write of a leader that was cut off: %+v", w)
	}
	lead(t, b)
	second := assignLater(b, give("x", b))
	blocked(t, d.DB, 1)
	release()
	if w := <-second; !w.leads || w.err != nil {
		t.Fatalf("the new leader's write: %+v", w)
	}
	if got := ownerOf(t, d.DB, "x"); got != b.cfg.ID.String() {
		t.Error("x is not the new leader's")
	}
	if n := scan[int](t, d.DB, `SELECT count(*) FROM consumer_assignments`); n != 1 {
		t.Errorf("there are %d rows, of the former leader's write too", n)
	}
}

// expire makes the lease one that its holder has not renewed.
func expire(t *testing.T, db *sql.DB) {
	t.Helper()
	mustExec(t, db, `UPDATE worker_leader_election SET expires_at = clock_timestamp()`)
}

func TestDeposedByLease(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	a, b := join(t, withStrategy(config(d.DB, six...), Lease)), join(t, withStrategy(config(d.DB, six...), Lease))
	lead(t, a)
	if mustLook(t, b).leads {
		t.Fatal("both lead")
	}
	if leads, _, err := b.assign(t.Context(), give("x", b)); leads || err != nil {
		t.Fatalf("a follower writes: %v, %v", leads, err)
	}
	expire(t, d.DB)
	if leads, _, err := a.assign(t.Context(), give("x", a)); leads || err != nil {
		t.Fatalf("writes with an expired lease: %v, %v", leads, err)
	}
	lead(t, b)
	if b.lease.term != a.lease.term+1 {
		t.Errorf("the term went from %d to %d", a.lease.term, b.lease.term)
	}
	if !a.leads {
		t.Fatal("the test wants two that believe to lead")
	}
	if leads, _, err := a.assign(t.Context(), give("x", a)); leads || err != nil {
		t.Fatalf("the former leader writes: %v, %v", leads, err)
	}
	if leads, _, err := b.assign(t.Context(), give("x", b)); !leads || err != nil {
		t.Fatalf("the leader cannot write: %v, %v", leads, err)
	}
	if mustLook(t, a).leads {
		t.Error("the former leader does not notice")
	}
}

// A lease that runs out while the write waits for its row is no proof: the
// clock is read when the row is held.
func TestLeaseExpiresInTheMiddle(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	a := join(t, withStrategy(config(d.DB, six...), Lease))
	lead(t, a)
	tx, err := d.DB.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.Exec(`SELECT FROM worker_leader_election FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	late := assignLater(a, give("x", a))
	blocked(t, d.DB, 1)
	// Valid when the write began, expired when it gets the row.
	if _, err := tx.Exec(`UPDATE worker_leader_election SET expires_at = clock_timestamp()`); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if w := <-late; w.leads || w.err != nil {
		t.Errorf("the write: %+v", w)
	}
	if n := scan[int](t, d.DB, `SELECT count(*) FROM consumer_assignments`); n != 0 {
		t.Error("it was written")
	}
}

// While a write is under way, nobody can take the lease over.
func TestLeaseIsKeptDuringAWrite(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	a, b := join(t, withStrategy(config(d.DB, six...), Lease)), join(t, withStrategy(config(d.DB, six...), Lease))
	lead(t, a)
	release := lockRow(t, d.DB, `INSERT INTO consumer_assignments (consumer_name, worker_id) VALUES ('x', gen_random_uuid())`)
	first := assignLater(a, give("x", a))
	blocked(t, d.DB, 1)
	claimed := make(chan error, 1)
	go func() { claimed <- b.claim(context.Background()) }()
	blocked(t, d.DB, 2)
	release()
	if w := <-first; !w.leads || w.err != nil {
		t.Errorf("the write: %+v", w)
	}
	if err := <-claimed; err != nil || b.lease.holder == b.cfg.ID {
		t.Errorf("a lease that is valid was claimed: %v, %+v", err, b.lease)
	}
}

// What is in the lease's row may be nonsense: it counts as expired.
func TestLeaseOutOfTheFuture(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	a, b := join(t, withStrategy(config(d.DB, six...), Lease)), join(t, withStrategy(config(d.DB, six...), Lease))
	for _, expires := range []string{"clock_timestamp() + interval '31 seconds'", "'infinity'", "'-infinity'", "NULL"} {
		lead(t, a)
		mustExec(t, d.DB, `UPDATE worker_leader_election SET expires_at = `+expires)
		if leads, _, err := a.assign(t.Context(), give("x", a)); leads || err != nil {
			t.Errorf("writes with a lease until %s: %v, %v", expires, leads, err)
		}
		lead(t, b)
		a, b = b, a
	}
}

// The holder renews before the lease is over, and keeps its term.
func TestLeaseRenewal(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	a := join(t, withStrategy(brisk(config(d.DB, six...)), Lease))
	lead(t, a)
	first := scan[time.Time](t, d.DB, `SELECT expires_at FROM worker_leader_election`)
	await(t, "the lease was renewed", func() bool {
		if !mustLook(t, a).leads {
			t.Fatal("the lease was lost")
		}
		return scan[time.Time](t, d.DB, `SELECT expires_at FROM worker_leader_election`).After(first)
	})
	if a.lease.term != 1 || a.lease.remaining(time.Now(), a.cfg.HeartbeatTimeout) == 0 {
		t.Errorf("after the renewal: %+v", a.lease)
	}
}

// A row that is right already is not written again: another leader may have
// done what this one is about to do.
func TestAssignWritesChangesOnly(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, d *pgtest.Database, s LeaderStrategy) {
		a := join(t, withStrategy(config(d.DB, six...), s))
		lead(t, a)
		history(t, d.DB)
		for range 3 {
			if leads, _, err := a.assign(t.Context(), append(give("x", a), give("y", a)...)); !leads || err != nil {
				t.Fatalf("assign: %v, %v", leads, err)
			}
		}
		if n := scan[int](t, d.DB, `SELECT count(*) FROM history`); n != 2 {
			t.Errorf("2 rows were written %d times", n)
		}
	})
}

// A leader, and those who leave, write at the same time and do not wait for
// each other in a ring.
func TestNoDeadlock(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, d *pgtest.Database, s LeaderStrategy) {
		units := make([]string, 30)
		for i := range units {
			units[i] = fmt.Sprintf("unit %02d", i)
		}
		leader := join(t, withStrategy(config(d.DB, units...), s))
		lead(t, leader)
		leaver := []*session{join(t, withStrategy(config(d.DB, units...), s)), join(t, withStrategy(config(d.DB, units...), s))}
		const rounds = 150
		var wg sync.WaitGroup
		for _, l := range leaver {
			wg.Go(func() {
				for range rounds {
					if err := l.leave(context.Background()); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for range rounds {
			var changes []change
			for _, i := range rand.Perm(len(units)) {
				changes = append(changes, change{units[i], leaver[rand.IntN(2)].cfg.ID})
			}
			if leads, _, err := leader.assign(t.Context(), changes); !leads || err != nil {
				t.Errorf("assign: %v, %v", leads, err)
				break
			}
		}
		wg.Wait()
	})
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
		s := &session{cfg: Config{HeartbeatInterval: time.Second, Elsewhere: func(context.Context, store.Querier) (bool, error) {
			asked++
			return answers[asked-1], nil
		}}}
		for i := range answers {
			time.Sleep(time.Second)
			if err := s.locate(t.Context()); errors.Is(err, errElsewhere) != (i == len(answers)-1) {
				t.Errorf("comparison %d: %v", i, err)
			}
			if err := s.locate(t.Context()); err != nil || asked != i+1 {
				t.Errorf("at once after comparison %d it has asked %d times: %v", i, asked, err)
			}
		}
	})
}
