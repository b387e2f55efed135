package coord

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/incarnation"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/migrations"
)

// A killed process is replaced long before its heartbeat is too old. The timeouts here are
// longer than the test's patience.
func TestKilledWorkerIsReplaced(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"leader", "follower"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			d := pgtest.New(t)
			insertToken(t, d.DB)
			lines := map[uuid.UUID]*line{}
			var workers []*worker
			for range 3 {
				l := &line{}
				w := start(t, config(l.open(t, d.URL), six...))
				lines[w.id] = l
				workers = append(workers, w)
			}
			awaitShares(workers...)
			leader, others := leaderOf(t, workers...)
			victim, rest := leader, others
			if who == "follower" {
				victim, rest = others[0], append(others[1:], leader)
			}
			lines[victim.id].cut(true)
			awaitShares(rest...)
			// The process lives: it comes back.
			lines[victim.id].mend()
			awaitShares(workers...)
		})
	}
}

// A heartbeat from before the token proves nothing. The worker repeats the heartbeat, and does
// not wait for the next one, an hour away.
func TestKilledWorkerIsReplacedAfterANewToken(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	l := &line{}
	hourly := func(db *sql.DB) Config {
		cfg := config(db, six...)
		cfg.HeartbeatInterval, cfg.HeartbeatTimeout = time.Hour, 3*time.Hour
		return cfg
	}
	a := start(t, hourly(l.open(t, d.URL)))
	b := start(t, hourly(d.DB))
	awaitShares(a, b)
	insertToken(t, d.DB)
	proven := `SELECT ` + incarnation.WroteRow(hourly(d.DB).Token, "n", "heartbeat_at") + ` FROM worker_nodes AS n WHERE worker_id = $1::uuid`
	await(t, "a heartbeat since then", func() (yes bool) { // without a token, the worker sends them all the time
		return d.DB.QueryRowContext(t.Context(), proven, a.id.String()).Scan(&yes) == nil && yes
	})
	l.cut(true)
	awaitShares(b)
}

// A new process finds the row of its predecessor, killed a moment ago, and does not wait for a
// timeout.
func TestNewProcessReplacesAKilledOne(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	insertToken(t, d.DB)
	l := &line{}
	start(t, config(l.open(t, d.URL), six...)).awaitAssigned(six...)
	l.cut(true)
	start(t, config(d.DB, six...)).awaitAssigned(six...)
}

// Without locks, or without the token, the heartbeat's age decides.
func TestSilentWorkerIsReplaced(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		leased bool
		token  bool
	}{"lease": {true, true}, "no token": {false, false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.New(t)
			if test.token {
				insertToken(t, d.DB)
			}
			l := &line{}
			a := start(t, withLease(quick(config(l.open(t, d.URL), six...)), test.leased))
			a.awaitAssigned(six...)
			b := start(t, withLease(quick(config(d.DB, six...)), test.leased))
			awaitShares(a, b)
			l.cut(true)
			b.awaitAssigned(six...)
			a.awaitAssigned() // the worker knows that it counts as dead
			if s := a.Status(); s.LastError == nil || s.Leader {
				t.Errorf("the status of a worker without a database is %+v", s)
			}
			l.mend()
			awaitShares(a, b)
			await(t, "the status says that all is well", func() bool { return a.Status().LastError == nil })
		})
	}
}

// A worker gets its session even if each login takes longer than a statement may. After a
// crash, the logins of many clients take that long.
func TestSlowLogins(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, d *pgtest.Database, leased bool) {
		l := &line{}
		a := start(t, withLease(quick(config(l.open(t, d.URL), six...)), leased))
		a.awaitAssigned(six...)
		l.slower(3 * time.Second)
		l.cut(false)
		await(t, "the worker to notice", func() bool { return a.Status().LastError != nil })
		await(t, "another session", func() bool { return a.Status().LastError == nil })
		a.awaitAssigned(six...)
	})
}

// Dead connections of the pool are tried and discarded one by one. Each has the same time
// limit as the first.
func TestDeadIdleConnectionsAreDiscarded(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	insertToken(t, d.DB)
	db, hole := d.OpenHole(t)
	const dead = 10
	db.SetMaxIdleConns(dead)
	a := start(t, quick(config(db, six...)))
	a.awaitAssigned(six...)
	var conns []*sql.Conn
	for range dead {
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		_ = conn.Close()
	}
	if n := hole.SwallowAll(); n < dead {
		t.Fatalf("%d connections died", n)
	}
	await(t, "the worker to notice", func() bool { return a.Status().LastError != nil })
	await(t, "another session", func() bool { return a.Status().LastError == nil })
}

// Terminated connections move no assignment, however often they are terminated.
func TestTerminatedConnectionsMoveNothing(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, d *pgtest.Database, leased bool) {
		a := start(t, withLease(brisk(config(d.DB, six...)), leased))
		b := start(t, withLease(brisk(config(d.DB, six...)), leased))
		for range 5 {
			awaitShares(a, b)
			mustExec(t, d.DB, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
		}
		awaitShares(a, b)
	})
}

// A restart of the server, clean or not, frees all locks and kills no worker. No assignment
// moves.
func TestServerRestartMovesNothing(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"clean", "crash"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			server := pgtest.OwnServer(t, nil)
			db := (&line{}).open(t, server.URL(""))
			db.SetMaxIdleConns(0) // the pool's connections would detect the restart
			tables := migrations.DefaultConfig()
			if err := migrations.Apply(t.Context(), db, &tables); err != nil {
				t.Fatal(err)
			}
			insertToken(t, db)
			var workers []*worker
			for range len(six) + 1 { // one worker has no unit
				cfg := config(db, six...)
				cfg.HeartbeatTimeout, cfg.RebalanceInterval = time.Hour, 10*time.Millisecond
				workers = append(workers, start(t, cfg))
			}
			awaitShares(workers...)
			history(t, db)
			before := map[uuid.UUID]time.Time{}
			for _, w := range workers {
				before[w.id] = w.Status().LastHeartbeat
			}
			if how == "crash" {
				if err := server.Kill(); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithTimeout(context.Background(), pgtest.Patience)
			defer cancel()
			if err := server.Restart(ctx); err != nil {
				t.Fatal(err)
			}
			if how == "crash" {
				insertToken(t, db)
			}
			for _, w := range workers {
				if !pgtest.Poll(func() bool {
					s := w.Status()
					return s.LastError == nil && s.LastHeartbeat.After(before[w.id])
				}) {
					t.Fatal("the worker did not come back")
				}
			}
			leaderOf(t, workers...)
			awaitShares(workers...)
			if n := scan[int](t, db, `SELECT count(*) FROM history`); n != 0 {
				t.Errorf("%d assignments were written", n)
			}
		})
	}
}

func TestDeletedRowIsRegisteredAgain(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, d *pgtest.Database, leased bool) {
		// No heartbeat detects the missing row before patience ends.
		cfg := withLease(config(d.DB, six...), leased)
		cfg.HeartbeatInterval, cfg.HeartbeatTimeout = time.Hour, 3*time.Hour
		a := start(t, cfg)
		cfg.ID = uuid.New()
		b := start(t, cfg)
		awaitShares(a, b)
		mustExec(t, d.DB, `DELETE FROM worker_nodes`)
		await(t, "both register anew", func() bool { return scan[int](t, d.DB, `SELECT count(*) FROM worker_nodes`) == 2 })
		awaitShares(a, b)
	})
}

// During the rollout of a new build, only workers with the code of its consumer get the
// consumer. A consumer without code keeps its assignment, and is reported once.
func TestRollingDeploy(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	history(t, d.DB)
	retired := uuid.New()
	mustExec(t, d.DB, `INSERT INTO consumer_assignments (consumer_name, worker_id) VALUES ('Retired', $1::uuid)`, retired.String())
	log := &logged{}
	build := func(units ...string) *worker {
		cfg := brisk(config(d.DB, units...))
		log.record(&cfg)
		return start(t, cfg)
	}
	old := []*worker{build("A", "B"), build("A", "B")}
	await(t, "the old build runs", func() bool { return len(old[0].Assigned()) == 1 && len(old[1].Assigned()) == 1 })
	fresh := []*worker{build("A", "B", "New")}
	await(t, "each runs one", func() bool {
		return len(old[0].Assigned()) == 1 && len(old[1].Assigned()) == 1 && slices.Equal(fresh[0].Assigned(), []string{"New"})
	})
	old[0].leave()
	fresh = append(fresh, build("A", "B", "New"))
	await(t, "each runs one", func() bool {
		return len(old[1].Assigned()) == 1 && len(fresh[0].Assigned()) == 1 && len(fresh[1].Assigned()) == 1
	})
	leader, _ := leaderOf(t, old[1], fresh[0], fresh[1])
	await(t, "the status to show the retired consumer", func() bool { return slices.Equal(leader.Status().Unowned, []string{"Retired"}) })
	old[1].leave()
	await(t, "the new build runs all", func() bool { return len(fresh[0].Assigned())+len(fresh[1].Assigned()) == 3 })
	if n := scan[int](t, d.DB, `SELECT count(*) FROM history WHERE unit = 'New' AND worker IN ($1::uuid, $2::uuid)`, old[0].id.String(), old[1].id.String()); n != 0 {
		t.Errorf("a worker without the code got the new consumer %d times", n)
	}
	if got := scan[string](t, d.DB, `SELECT worker_id::text FROM consumer_assignments WHERE consumer_name = 'Retired'`); got != retired.String() {
		t.Error("the assignment of a consumer without code has moved")
	}
	if n := log.count("no live worker has code", "Retired"); n == 0 || n > 4 {
		t.Errorf("%d lines report that no worker has code for Retired, want 1 to 4, one per leader", n)
	}
}

// logged records the callbacks of a Coordinator.
type logged struct {
	mu    sync.Mutex
	lines []string
}

func (l *logged) add(about ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprint(about...))
}

// record sets the callbacks of a Coordinator.
func (l *logged) record(cfg *Config) {
	cfg.OnUnowned = func(unit, reason string) { l.add("unowned ", unit, ": ", reason) }
	cfg.OnOwned = func(unit string) { l.add("run again ", unit) }
	cfg.OnTaskFailed = func(task string, err error) { l.add("task failed ", task, ": ", err) }
}

func (l *logged) count(words ...string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			n++
		}
	}
	return n
}

// Connections to a standby leave the pool, however many there are, and the coordination does
// not use them again.
func TestStandbyLeavesThePool(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, d *pgtest.Database, leased bool) {
		var standby atomic.Bool
		cfg, err := pgx.ParseConfig(d.URL)
		if err != nil {
			t.Fatal("pgx does not parse the connection string")
		}
		db := stdlib.OpenDB(*cfg, stdlib.OptionAfterConnect(func(ctx context.Context, conn *pgx.Conn) (err error) {
			if standby.Load() {
				_, err = conn.Exec(ctx, `SET default_transaction_read_only = on`)
			}
			return err
		}))
		t.Cleanup(func() { db.Close() })
		const idle = 8
		db.SetMaxIdleConns(idle)
		fill := func() {
			t.Helper()
			db.SetMaxIdleConns(-1)
			db.SetMaxIdleConns(idle)
			standby.Store(true)
			defer standby.Store(false)
			for range idle {
				conn, err := db.Conn(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
			}
		}
		w := start(t, withLease(brisk(config(db, six...)), leased))
		w.awaitAssigned(six...)
		fill()
		await(t, "the end of the coordination's session", func() bool {
			return scan[bool](t, d.DB, `
SELECT coalesce(bool_or(pg_terminate_backend(pid)), false) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND query ~ 'worker_nodes|worker_leader_election'`)
		})
		lost := time.Now()
		await(t, "a heartbeat", func() bool { return w.Status().LastHeartbeat.After(lost) && w.Status().LastError == nil })
		fill()
		w.leave()
		if n := scan[int](t, d.DB, `SELECT count(*) FROM worker_nodes`); n != 0 {
			t.Errorf("a worker that has left has %d rows", n)
		}
	})
}
