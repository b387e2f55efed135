package coord

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/liveness"
)

// Workers join, share the units as documented, and leave.
func TestJoinShareLeave(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, d *pgtest.Database, leased bool) {
		var workers []*worker
		for range 5 {
			workers = append(workers, start(t, withLease(config(d.DB, six...), leased)))
			awaitShares(workers...)
		}
		for len(workers) > 1 {
			leader, others := leaderOf(t, workers...)
			if len(workers)%2 == 0 {
				leader, others = others[0], append(others[1:], leader)
			}
			leader.leave()
			if got := leader.Assigned(); len(got) > 0 {
				t.Errorf("a worker that left runs %q", got)
			}
			workers = others
			awaitShares(workers...)
		}
		workers[0].leave()
		for _, table := range []string{"worker_nodes", "consumer_assignments"} {
			if n := scan[int](t, d.DB, `SELECT count(*) FROM `+table); n != 0 {
				t.Errorf("%d rows are left in %s", n, table)
			}
		}
		if n := scan[int](t, d.DB, `SELECT count(*) FROM worker_leader_election WHERE worker_id IS NOT NULL`); n != 0 {
			t.Error("a lease is still held")
		}
		pgtest.AwaitUnused(t, d.DB)
		await(t, "all advisory locks are free", func() bool {
			return scan[int](t, d.DB, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) == 0
		})
		if err := workers[0].Leave(context.Background(), false); err != nil {
			t.Errorf("the second Leave: %v", err)
		}
		if stopped := scan[string](t, d.DB, `SELECT count(DISTINCT worker_id) || ' ' || string_agg(DISTINCT how, ' ') || ' ' || count(*) FROM consumer_past_workers`); stopped != "5 stopped 5" {
			t.Errorf("the stopped workers are recorded as %s", stopped)
		}
	})
}

// Workers that start at the same time agree.
func TestConcurrentStart(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	workers := make([]*worker, 8)
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() { workers[i] = start(t, config(d.DB, six...)) })
	}
	wg.Wait()
	awaitShares(workers...)
}

// Every driver and mode works.
func TestEveryDriver(t *testing.T) {
	t.Parallel()
	for _, mode := range pgtest.Modes() {
		t.Run("pgx "+mode.String(), func(t *testing.T) {
			t.Parallel()
			eachStrategy(t, func(t *testing.T, d *pgtest.Database, leased bool) { testDriver(t, d.OpenMode(t, mode), leased) })
		})
	}
	t.Run("pq", func(t *testing.T) {
		t.Parallel()
		eachStrategy(t, func(t *testing.T, d *pgtest.Database, leased bool) { testDriver(t, d.OpenPQ(t), leased) })
	})
}

func testDriver(t *testing.T, db *sql.DB, leased bool) {
	awkward := []string{`a"b`, `c\d`, `e'f`, `{g,h}`, "ü $1 \n", `null`}
	a := start(t, withLease(brisk(config(db, awkward...)), leased))
	want := slices.Sorted(slices.Values(awkward))
	a.awaitAssigned(want...)
	b := start(t, withLease(brisk(config(db, awkward...)), leased))
	await(t, "both have their share", func() bool { return len(a.Assigned()) == 3 && len(b.Assigned()) == 3 })
	a.leave()
	b.awaitAssigned(want...)
	row := scan[string](t, db, `SELECT array_to_string(consumers, '|') || '|' || (hostname <> '') || '|' || (pid > 0) || '|' || protocol FROM worker_nodes`)
	if want := fmt.Sprintf("%s|true|true|%d", strings.Join(awkward, "|"), map[bool]int{false: liveness.ProtocolLock, true: liveness.ProtocolHeartbeat}[leased]); row != want {
		t.Errorf("the registered row is %q, want %q", row, want)
	}
}

// A new worker gets its share. With the sticky strategy no other unit moves.
func TestStickyRebalance(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, d *pgtest.Database, leased bool) {
		begin := func() *worker {
			cfg := withLease(config(d.DB, six...), leased)
			cfg.Sticky = true
			return start(t, cfg)
		}
		has := func(w *worker, n int) func() bool { return func() bool { return len(w.Assigned()) == n } }
		a, b := begin(), begin()
		await(t, "the first has three", has(a, 3))
		await(t, "the second has three", has(b, 3))
		history(t, d.DB)
		c := begin()
		await(t, "the third has two", has(c, 2))
		await(t, "the first has two", has(a, 2))
		await(t, "the second has two", has(b, 2))
		if n := scan[int](t, d.DB, `SELECT count(*) FROM history`); n != 2 {
			t.Errorf("%d assignments were written for a share of two", n)
		}
	})
}

// While nothing changes, the leader writes nothing, however often it polls.
func TestNothingIsWrittenWithoutChanges(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, d *pgtest.Database, leased bool) {
		a := start(t, withLease(brisk(config(d.DB, six...)), leased))
		b := start(t, withLease(brisk(config(d.DB, six...)), leased))
		awaitShares(a, b)
		history(t, d.DB)
		for range 20 { // a poll and a rebalance follow each heartbeat
			before := a.Status().LastHeartbeat
			await(t, "another heartbeat", func() bool { return a.Status().LastHeartbeat.After(before) })
		}
		if n := scan[int](t, d.DB, `SELECT count(*) FROM history`); n != 0 {
			t.Errorf("%d assignments were written", n)
		}
		// The leader corrects a foreign change: so it did poll.
		mustExec(t, d.DB, `UPDATE consumer_assignments SET worker_id = gen_random_uuid() WHERE consumer_name = 'Orders'`)
		mustExec(t, d.DB, `DELETE FROM consumer_assignments WHERE consumer_name = 'Email'`)
		await(t, "what was changed is put right", func() bool { return scan[int](t, d.DB, `SELECT count(*) FROM history`) == 4 })
		awaitShares(a, b)
	})
}

// Two applications in one database each have their leader.
func TestEachApplicationHasALeader(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, d *pgtest.Database, leased bool) {
		mustExec(t, d.DB, `CREATE SCHEMA other`)
		for _, table := range []string{"worker_nodes", "consumer_assignments"} {
			mustExec(t, d.DB, `CREATE TABLE other.`+table+` (LIKE public.`+table+` INCLUDING ALL)`)
		}
		a := withLease(config(d.DB, six...), leased)
		b := a
		b.ID = uuid.New()
		b.Nodes, b.Assignments = ident.Table{Schema: "other", Name: "worker_nodes"}, ident.Table{Schema: "other", Name: "consumer_assignments"}
		one, two := start(t, a), start(t, b)
		one.awaitAssigned(six...)
		two.awaitAssigned(six...)
		await(t, "both lead", func() bool { return one.Status().Leader && two.Status().Leader })
	})
}

// During a change of the strategy, workers with and without locks run together. Each kind has
// a leader, and the leaders agree.
func TestMixedStrategiesAgree(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	insertToken(t, d.DB)
	a := start(t, brisk(config(d.DB, six...)))
	a.awaitAssigned(six...)
	b := start(t, withLease(brisk(config(d.DB, six...)), true))
	awaitShares(a, b)
	await(t, "both lead", func() bool { return a.Status().Leader && b.Status().Leader })
	history(t, d.DB)
	for range 20 {
		before := a.Status().LastHeartbeat
		await(t, "another heartbeat", func() bool { return a.Status().LastHeartbeat.After(before) })
	}
	if n := scan[int](t, d.DB, `SELECT count(*) FROM history`); n != 0 {
		t.Errorf("%d assignments were written", n)
	}
	awaitShares(a, b)
}

// A worker gets the units that its code has, and only while the other workers may count it as
// alive.
func TestAssignedNeedsCodeAndAHeartbeat(t *testing.T) {
	c := New(config(nil, "b", "a"))
	closed := func(ch <-chan struct{}) bool {
		select {
		case <-ch:
			return true
		default:
			return false
		}
	}
	expect := func(when string, change bool, want ...string) func() {
		changed := c.Changed()
		return func() {
			t.Helper()
			if got := c.Assigned(); !slices.Equal(got, want) || closed(changed) != change {
				t.Errorf("%s: %q, changed: %v; want %q, %v", when, got, closed(changed), want, change)
			}
		}
	}
	check := expect("never had a heartbeat", false)
	c.setAssigned(map[string]int{"a": 0})
	check()
	c.renew(time.Now())
	check = expect("first", true, "a", "b")
	c.setAssigned(map[string]int{"other": 0, "b": 0, "a": 0})
	check()
	check = expect("the same", false, "a", "b")
	c.setAssigned(map[string]int{"a": 0, "b": 0})
	check()
	check = expect("other partitions are wanted", true, "a", "b")
	c.setAssigned(map[string]int{"a": 0, "b": 4})
	check()
	if c.Wanted("a") != 0 || c.Wanted("b") != 4 {
		t.Errorf("wanted are %d and %d partitions", c.Wanted("a"), c.Wanted("b"))
	}
	check = expect("parts of what it has code for", true, "a", "b#000-7ff")
	c.setAssigned(map[string]int{"a": 0, "b#000-7ff": 2, "other#000-7ff": 2})
	check()
	c.setAssigned(map[string]int{"a": 0, "b": 0})
	check = expect("no heartbeat for too long", true)
	c.renew(time.Now().Add(-c.cfg.HeartbeatTimeout))
	c.setAssigned(map[string]int{"a": 0, "b": 0})
	check()
	c.renew(time.Now())
	c.setAssigned(map[string]int{"a": 0})
	lapsed := c.Changed()
	c.renew(time.Now().Add(time.Millisecond - c.cfg.HeartbeatTimeout))
	select {
	case <-lapsed: // without a call of setAssigned
	case <-time.After(patience):
		t.Fatal("the units stay assigned after the timeout")
	}
	if got := c.Assigned(); len(got) > 0 {
		t.Errorf("after the timeout: %q", got)
	}
}

// Register removes the rows of workers that have been silent for twice their HeartbeatTimeout,
// and no others.
func TestRegisterRemovesDeadWorkers(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	for _, seconds := range []int{1, 30, 90, 3600} {
		mustExec(t, d.DB, `INSERT INTO worker_nodes (worker_id, heartbeat_at) VALUES (gen_random_uuid(), clock_timestamp() - $1::int * interval '1 second')`, seconds)
	}
	c := New(config(d.DB, six...))
	if err := c.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer c.Leave(context.Background(), false)
	if n := scan[int](t, d.DB, `SELECT count(*) FROM worker_nodes`); n != 3 {
		t.Errorf("%d rows are left, not 3", n)
	}
}

// A worker that fails is recorded as failed, also if an operator has asked it to drain.
func TestHowAWorkerStopped(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	for _, w := range []struct {
		drain, failed bool
		how           string
	}{{false, false, "stopped"}, {true, false, "drained"}, {false, true, "failed"}, {true, true, "failed"}} {
		cfg := config(d.DB, six...)
		c := New(cfg)
		if err := c.Register(t.Context()); err != nil {
			t.Fatal(err)
		}
		if w.drain {
			mustExec(t, d.DB, `UPDATE worker_nodes SET drain_requested_at = clock_timestamp() WHERE worker_id = $1`, cfg.ID)
		}
		if err := c.Leave(t.Context(), w.failed); err != nil {
			t.Fatal(err)
		}
		if how := scan[string](t, d.DB, `SELECT how FROM consumer_past_workers WHERE worker_id = $1`, cfg.ID); how != w.how {
			t.Errorf("%+v: recorded as %s", w, how)
		}
	}
}

// A removal of rows that times out does not keep a worker from registering.
func TestRegisterSurvivesASlowRemoval(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	mustExec(t, d.DB, `INSERT INTO worker_nodes (worker_id, heartbeat_at) VALUES (gen_random_uuid(), clock_timestamp() - interval '1 hour')`)
	mustExec(t, d.DB, `CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(10); RETURN OLD; END $$`)
	mustExec(t, d.DB, `CREATE TRIGGER linger BEFORE DELETE ON worker_nodes FOR EACH ROW WHEN (OLD.heartbeat_at < now() - interval '1 minute') EXECUTE FUNCTION linger()`)
	log := &logged{}
	cfg := brisk(config(d.DB, six...))
	cfg.HeartbeatTimeout = 9 * time.Second // a statement may take three seconds
	log.record(&cfg)
	cfg.OnFailure = func(err error) { t.Errorf("Run: %v", err) }
	w := start(t, cfg)
	w.awaitAssigned(six...)
	if log.count("remove stale workers") != 1 {
		t.Error("the failed removal of rows was not reported")
	}
	w.leave()
}

// A failed Register names the cause and leaves nothing behind.
func TestRegisterFails(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	for name, test := range map[string]struct {
		change func(c *Config)
		word   string
	}{
		"no table":    {func(*Config) {}, "worker_nodes does not exist"},
		"no DB":       {func(c *Config) { c.DB = nil }, "Config.DB"},
		"no id":       {func(c *Config) { c.ID = uuid.Nil }, "Config.ID"},
		"no name":     {func(c *Config) { c.Leader = ident.Table{} }, "Leader"},
		"no interval": {func(c *Config) { c.HeartbeatInterval = 0 }, "HeartbeatInterval"},
		"timeout":     {func(c *Config) { c.HeartbeatTimeout = c.HeartbeatInterval }, "HeartbeatTimeout is 5s"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(d.DB, six...)
			test.change(&cfg)
			c := New(cfg)
			if err := c.Register(t.Context()); err == nil || !strings.Contains(err.Error(), test.word) {
				t.Errorf("Register returned %v, want an error that contains %q", err, test.word)
			}
			pgtest.AwaitUnused(t, d.DB)
		})
	}
}

// A server that does not answer in time is asked again, more often than the pool has connections.
func TestLeaveOfASlowServer(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	insertToken(t, d.DB)
	w := New(quick(config(d.DB, six...)))
	if err := w.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	tx, err := d.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.Exec(`SELECT FROM worker_nodes FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	left := make(chan error, 1)
	go func() { left <- w.Leave(t.Context(), false) }()
	tries := make(map[int]bool)
	await(t, "more tries than connections", func() bool {
		tries[scan[int](t, d.DB, `SELECT coalesce(max(pid), 0) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)] = true
		return len(tries) > 4 // one of them is the moment between two
	})
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-left; err != nil {
		t.Error(err)
	}
	if n := scan[int](t, d.DB, `SELECT count(*) FROM worker_nodes`); n != 0 {
		t.Errorf("%d workers are listed", n)
	}
}
