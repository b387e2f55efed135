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
	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgtest"
	"github.com/pgfrontier/worker/migrations"
)

// Workers come, share out as documented, and go.
func TestShare(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, d *pgtest.Database, s LeaderStrategy) {
		var workers []*worker
		for range 5 {
			workers = append(workers, start(t, withStrategy(config(d.DB, six...), s)))
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
		if n := d.DB.Stats().InUse; n != 0 {
			t.Errorf("%d connections are still in use", n)
		}
		await(t, "all advisory locks are free", func() bool {
			return scan[int](t, d.DB, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) == 0
		})
		if err := workers[0].Leave(context.Background()); err != nil {
			t.Errorf("the second Leave: %v", err)
		}
	})
}

// All that start at once agree too.
func TestManyAtOnce(t *testing.T) {
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

// With every driver and mode.
func TestDrivers(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run("pgx "+mode.String(), func(t *testing.T) {
			t.Parallel()
			eachStrategy(t, func(t *testing.T, d *pgtest.Database, s LeaderStrategy) { testDriver(t, d.OpenMode(t, mode), s) })
		})
	}
	t.Run("pq", func(t *testing.T) {
		t.Parallel()
		eachStrategy(t, func(t *testing.T, d *pgtest.Database, s LeaderStrategy) { testDriver(t, d.OpenPQ(t), s) })
	})
}

func testDriver(t *testing.T, db *sql.DB, s LeaderStrategy) {
	awkward := []string{`a"b`, `c\d`, `e'f`, `{g,h}`, "ü $1 \n", `null`}
	a := start(t, withStrategy(brisk(config(db, awkward...)), s))
	want := slices.Sorted(slices.Values(awkward))
	a.awaitAssigned(want...)
	b := start(t, withStrategy(brisk(config(db, awkward...)), s))
	await(t, "both have their share", func() bool { return len(a.Assigned()) == 3 && len(b.Assigned()) == 3 })
	a.leave()
	b.awaitAssigned(want...)
	row := scan[string](t, db, `SELECT array_to_string(consumers, '|') || '|' || (hostname <> '') || '|' || (pid > 0) || '|' || protocol FROM worker_nodes`)
	if want := fmt.Sprintf("%s|true|true|%d", strings.Join(awkward, "|"), map[LeaderStrategy]int{Advisory: protocolLock, Lease: protocolHeartbeat}[s]); row != want {
		t.Errorf("the registration says %q, not %q", row, want)
	}
}

// A killed process is replaced long before its heartbeat is too old: the
// time-outs here are longer than the test's patience.
func TestKilled(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"leader", "follower"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			d := pgtest.New(t)
			plantToken(t, d.DB)
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
			// It was no death: it comes back.
			lines[victim.id].mend()
			awaitShares(workers...)
		})
	}
}

// The heartbeat of a worker that was there before the token proves nothing, so
// it does not wait for the next, an hour away.
func TestKilledAfterANewToken(t *testing.T) {
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
	before := a.Status().LastHeartbeat
	plantToken(t, d.DB)
	await(t, "a heartbeat", func() bool { return a.Status().LastHeartbeat.After(before) })
	l.cut(true)
	awaitShares(b)
}

// A new process finds its predecessor's row, killed a moment ago, and does not
// wait for it.
func TestKilledAlone(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	plantToken(t, d.DB)
	l := &line{}
	start(t, config(l.open(t, d.URL), six...)).awaitAssigned(six...)
	l.cut(true)
	start(t, config(d.DB, six...)).awaitAssigned(six...)
}

// Without locks, or without the token, the heartbeat's age decides.
func TestSilent(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		strategy LeaderStrategy
		token    bool
	}{"lease": {Lease, true}, "no token": {Advisory, false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.New(t)
			if test.token {
				plantToken(t, d.DB)
			}
			l := &line{}
			a := start(t, withStrategy(quick(config(l.open(t, d.URL), six...)), test.strategy))
			a.awaitAssigned(six...)
			b := start(t, withStrategy(quick(config(d.DB, six...)), test.strategy))
			awaitShares(a, b)
			l.cut(true)
			b.awaitAssigned(six...)
			a.awaitAssigned() // it knows that it counts as dead
			if s := a.Status(); s.LastError == nil || s.Leader {
				t.Errorf("the status of a worker without database is %+v", s)
			}
			l.mend()
			awaitShares(a, b)
			await(t, "the status says that all is well", func() bool { return a.Status().LastError == nil })
		})
	}
}

// Connections may break as often as they like.
func TestTerminated(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, d *pgtest.Database, s LeaderStrategy) {
		a := start(t, withStrategy(brisk(config(d.DB, six...)), s))
		b := start(t, withStrategy(brisk(config(d.DB, six...)), s))
		for range 5 {
			awaitShares(a, b)
			mustExec(t, d.DB, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
		}
		awaitShares(a, b)
	})
}

// A restart of the server, clean or not, makes all locks free and is nobody's
// death: no assignment moves.
func TestServerRestart(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"clean", "crash"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			server := pgtest.OwnServer(t, nil)
			db := (&line{}).open(t, server.URL(""))
			db.SetMaxIdleConns(0) // or the test would meet the restart itself
			tables := migrations.DefaultConfig()
			if err := migrations.Apply(t.Context(), db, &tables); err != nil {
				t.Fatal(err)
			}
			plantToken(t, db)
			var workers []*worker
			for range 10 {
				cfg := config(db, six...)
				cfg.RebalanceInterval = 10 * time.Millisecond
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
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if err := server.Restart(ctx); err != nil {
				t.Fatal(err)
			}
			if how == "crash" {
				plantToken(t, db)
			}
			for _, w := range workers {
				await(t, "the worker is back", func() bool {
					s := w.Status()
					return s.LastError == nil && s.LastHeartbeat.After(before[w.id])
				})
			}
			leaderOf(t, workers...)
			awaitShares(workers...)
			if n := scan[int](t, db, `SELECT count(*) FROM history`); n != 0 {
				t.Errorf("%d assignments were written", n)
			}
		})
	}
}

func TestRowDeleted(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, d *pgtest.Database, s LeaderStrategy) {
		// No heartbeat meets the row's end before patience does.
		cfg := withStrategy(config(d.DB, six...), s)
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

// While a new build is rolled out, only those get its consumer who have code
// for it; what nobody has code for is left alone, and said once.
func TestRollingDeploy(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	history(t, d.DB)
	retired := uuid.New()
	mustExec(t, d.DB, `INSERT INTO consumer_assignments (consumer_name, worker_id) VALUES ('Retired', $1::uuid)`, retired.String())
	log := &logged{}
	build := func(units ...string) *worker {
		cfg := brisk(config(d.DB, units...))
		cfg.Logger = log
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
	if got := leader.Status().Unowned; !slices.Equal(got, []string{"Retired"}) {
		t.Errorf("unowned are %q", got)
	}
	old[1].leave()
	await(t, "the new build runs all", func() bool { return len(fresh[0].Assigned())+len(fresh[1].Assigned()) == 3 })
	if n := scan[int](t, d.DB, `SELECT count(*) FROM history WHERE unit = 'New' AND worker IN ($1::uuid, $2::uuid)`, old[0].id.String(), old[1].id.String()); n != 0 {
		t.Errorf("an old build was given the new consumer %d times", n)
	}
	if got := scan[string](t, d.DB, `SELECT worker_id::text FROM consumer_assignments WHERE consumer_name = 'Retired'`); got != retired.String() {
		t.Error("the assignment of a consumer that nobody has code for has moved")
	}
	if n := log.count("no live worker has code", "Retired"); n == 0 || n > 4 {
		t.Errorf("%d lines say that nobody has code for Retired, by 1 to 4 leaders", n)
	}
}

// logged remembers what it is told.
type logged struct {
	mu    sync.Mutex
	lines []string
}

func (l *logged) add(msg string, keyvals []any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, msg+" "+fmt.Sprint(keyvals...))
}

func (l *logged) Debug(_ context.Context, msg string, keyvals ...any) { l.add(msg, keyvals) }
func (l *logged) Info(_ context.Context, msg string, keyvals ...any)  { l.add(msg, keyvals) }
func (l *logged) Error(_ context.Context, msg string, keyvals ...any) { l.add(msg, keyvals) }

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

// A newcomer gets its share; with the sticky strategy nothing else moves.
func TestSticky(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, d *pgtest.Database, s LeaderStrategy) {
		begin := func() *worker {
			cfg := withStrategy(config(d.DB, six...), s)
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

// Nothing is written while nothing changes, however often the leader looks.
func TestNoChurn(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, d *pgtest.Database, s LeaderStrategy) {
		a := start(t, withStrategy(brisk(config(d.DB, six...)), s))
		b := start(t, withStrategy(brisk(config(d.DB, six...)), s))
		awaitShares(a, b)
		history(t, d.DB)
		for range 20 { // each heartbeat is followed by a look, and by a rebalance
			before := a.Status().LastHeartbeat
			await(t, "another heartbeat", func() bool { return a.Status().LastHeartbeat.After(before) })
		}
		if n := scan[int](t, d.DB, `SELECT count(*) FROM history`); n != 0 {
			t.Errorf("%d assignments were written", n)
		}
		// What others change, the leader puts right: so it did look.
		mustExec(t, d.DB, `UPDATE consumer_assignments SET worker_id = gen_random_uuid() WHERE consumer_name = 'Orders'`)
		mustExec(t, d.DB, `DELETE FROM consumer_assignments WHERE consumer_name = 'Email'`)
		await(t, "what was changed is put right", func() bool { return scan[int](t, d.DB, `SELECT count(*) FROM history`) == 4 })
		awaitShares(a, b)
	})
}

// Two applications in one database each have their leader.
func TestTwoApplications(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, d *pgtest.Database, s LeaderStrategy) {
		mustExec(t, d.DB, `CREATE SCHEMA other`)
		for _, table := range []string{"worker_nodes", "consumer_assignments"} {
			mustExec(t, d.DB, `CREATE TABLE other.`+table+` (LIKE public.`+table+` INCLUDING ALL)`)
		}
		a := withStrategy(config(d.DB, six...), s)
		b := a
		b.ID = uuid.New()
		b.Nodes, b.Assignments = ident.Table{Schema: "other", Name: "worker_nodes"}, ident.Table{Schema: "other", Name: "consumer_assignments"}
		one, two := start(t, a), start(t, b)
		one.awaitAssigned(six...)
		two.awaitAssigned(six...)
		await(t, "both lead", func() bool { return one.Status().Leader && two.Status().Leader })
	})
}

// Workers with and without locks get along, during a change of the strategy:
// both kinds have a leader then, and the leaders agree.
func TestMixedStrategies(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	plantToken(t, d.DB)
	a := start(t, brisk(config(d.DB, six...)))
	a.awaitAssigned(six...)
	b := start(t, withStrategy(brisk(config(d.DB, six...)), Lease))
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

// What is delivered is what this worker can run, while it may believe that the
// others count on it.
func TestDeliver(t *testing.T) {
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
	c.deliver([]string{"a"})
	check()
	c.trust(time.Now())
	check = expect("first", true, "a", "b")
	c.deliver([]string{"other", "b", "a"})
	check()
	check = expect("the same", false, "a", "b")
	c.deliver([]string{"a", "b"})
	check()
	check = expect("no heartbeat for too long", true)
	c.trust(time.Now().Add(-c.cfg.HeartbeatTimeout))
	c.deliver([]string{"a", "b"})
	check()
	c.trust(time.Now())
	c.deliver([]string{"a"})
	lapsed := c.Changed()
	c.trust(time.Now().Add(time.Millisecond - c.cfg.HeartbeatTimeout))
	select {
	case <-lapsed: // by itself, with nobody delivering anything
	case <-time.After(patience):
		t.Fatal("what was assigned stays for ever")
	}
	if got := c.Assigned(); len(got) > 0 {
		t.Errorf("after the time-out: %q", got)
	}
}

// Registering removes the rows of workers that are silent for twice the
// time-out, and no others.
func TestRegisterCleans(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	for _, seconds := range []int{1, 59, 61, 3600} {
		mustExec(t, d.DB, `INSERT INTO worker_nodes (worker_id, heartbeat_at) VALUES (gen_random_uuid(), clock_timestamp() - $1::int * interval '1 second')`, seconds)
	}
	c := New(config(d.DB, six...))
	if err := c.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer c.Leave(context.Background())
	if n := scan[int](t, d.DB, `SELECT count(*) FROM worker_nodes`); n != 3 {
		t.Errorf("%d rows are left, not 3", n)
	}
}

// Register says what is wrong and leaves nothing behind.
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
		"time-out":    {func(c *Config) { c.HeartbeatTimeout = c.HeartbeatInterval }, "HeartbeatTimeout is 5s"},
		"strategy":    {func(c *Config) { c.Strategy = 7 }, "Strategy is 7"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(d.DB, six...)
			test.change(&cfg)
			c := New(cfg)
			if err := c.Register(t.Context()); err == nil || !strings.Contains(err.Error(), test.word) {
				t.Errorf("Register: %v, which does not say %q", err, test.word)
			}
			if n := d.DB.Stats().InUse; n != 0 {
				t.Errorf("%d connections are still in use", n)
			}
		})
	}
}
