package pgtest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

func TestMain(m *testing.M) {
	if os.Getenv(leakVariable) == "1" {
		*pgtest.LeakPatience = time.Second
	}
	pgtest.Main(m)
}

var tables = []string{
	"events", "aggregate_heads", "worker_nodes", "consumer_assignments", "consumer_checkpoints", "consumer_gap_skips", "worker_leader_election",
}

func TestNewHasTheTables(t *testing.T) {
	d := pgtest.New(t)
	for _, table := range tables {
		d.Exec(t, `SELECT * FROM `+table)
	}
}

func TestJobsHasTheirTables(t *testing.T) {
	for range 2 {
		d := pgtest.Jobs(t)
		d.Exec(t, `INSERT INTO jobs_workers (worker_id) VALUES (gen_random_uuid())`)
		if n := count(t, d.DB, `SELECT count(*) FROM jobs_workers`); n != 1 {
			t.Errorf("%d rows, want 1", n)
		}
	}
}

func TestEmptyHasNone(t *testing.T) {
	d := pgtest.Empty(t)
	if n := count(t, d.DB, `SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace`); n != 0 {
		t.Errorf("%d relations", n)
	}
}

// What one test does, no other sees, also at the same time.
func TestIsolation(t *testing.T) {
	for i := range 4 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			d := pgtest.New(t)
			d.Exec(t, `INSERT INTO aggregate_heads (aggregate_type, aggregate_id, aggregate_version) VALUES ('t', $1::text, 1)`, fmt.Sprint(i))
			if n := count(t, d.DB, `SELECT count(*) FROM aggregate_heads`); n != 1 {
				t.Errorf("%d rows, want 1", n)
			}
		})
	}
}

// A database is dropped after its test, whatever the test has left in it, and
// its pool is closed.
func TestDropped(t *testing.T) {
	var name string
	var db *sql.DB
	t.Run("test", func(t *testing.T) {
		d := pgtest.New(t)
		db = d.DB
		if err := db.QueryRow(`SELECT current_database()`).Scan(&name); err != nil {
			t.Fatal(err)
		}
		session, err := pgx.Connect(t.Context(), d.URL)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { session.Close(context.Background()) })
		for _, sql := range []string{`BEGIN`, `CREATE TABLE left_behind (i INT)`, `PREPARE TRANSACTION 'it''s left behind'`, `BEGIN`, `LOCK TABLE events`} {
			if _, err := session.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() { d.Exec(t, `SELECT 1`) }) // works in cleanups too
	})
	admin := open(t, pgtest.Server(t).URL(""))
	if name == "" || count(t, admin, `SELECT count(*) FROM pg_database WHERE datname = $1::text`, name) != 0 {
		t.Errorf("the database %q is still there", name)
	}
	if err := db.Ping(); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("the pool is still open: %v", err)
	}
}

func TestOtherDrivers(t *testing.T) {
	d := pgtest.New(t)
	d.Exec(t, `CREATE TABLE seen (i INT)`)
	d.Exec(t, `INSERT INTO seen VALUES (1), (2)`)
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		db := d.OpenMode(t, mode)
		if n := count(t, db, `SELECT count(*) FROM seen WHERE i < $1::int`, 2); n != 1 {
			t.Errorf("%v: %d rows, want 1", mode, n)
		}
		if got := usedMode(t, db); got != mode {
			t.Errorf("the pool for mode %v uses %v", mode, got)
		}
	}
	db := d.OpenPQ(t)
	if n := count(t, db, `SELECT count(*) FROM seen WHERE i < $1::int`, 2); n != 1 {
		t.Errorf("lib/pq: %d rows, want 1", n)
	}
	var pqError *pq.Error
	if _, err := db.Exec(`SELECT 1/0`); !errors.As(err, &pqError) {
		t.Errorf("lib/pq: the error is a %T", err)
	}
}

func usedMode(t *testing.T, db *sql.DB) (mode pgx.QueryExecMode) {
	t.Helper()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	err = conn.Raw(func(driver any) error {
		mode = driver.(*stdlib.Conn).Conn().Config().DefaultQueryExecMode
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return mode
}

func TestOwnServer(t *testing.T) {
	shared := pgtest.Server(t)
	server := pgtest.OwnServer(t, map[string]string{"max_connections": "77"})
	if server.PID() == shared.PID() {
		t.Fatal("it is the shared one")
	}
	db := open(t, server.URL(""))
	if n := count(t, db, `SELECT current_setting('max_connections')::int`); n != 77 {
		t.Errorf("max_connections is %d, want 77", n)
	}
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	pgtest.Empty(t).Exec(t, `SELECT 'the shared one lives'`)
}

// TestSaysPort tells TestNamedServer which server it was on.
func TestSaysPort(t *testing.T) {
	t.Logf("port %d", count(t, pgtest.New(t).DB, `SELECT inet_server_port()`))
}

// The databases go to the server that is named, and none is left there.
func TestNamedServer(t *testing.T) {
	server := pgtest.OwnServer(t, nil)
	db := open(t, server.URL(""))
	port := count(t, db, `SELECT inet_server_port()`)
	for name, run := range map[string]*exec.Cmd{
		"DATABASE_URL": again(t, "^TestSaysPort$", "DATABASE_URL="+server.URL("")),
		"-db":          again(t, "^TestSaysPort$", "DATABASE_URL=postgres://"+closedPort(t), "-db", server.URL("")),
	} {
		out, err := run.CombinedOutput()
		if err != nil || !strings.Contains(string(out), fmt.Sprintf("port %d\n", port)) {
			t.Errorf("%s: %v, want port %d in\n%s", name, err, port, out)
		}
		if n := count(t, db, `SELECT count(*) FROM pg_database WHERE datname LIKE 'pgtest%'`); n != 0 {
			t.Errorf("%s: %d databases are left", name, n)
		}
	}
}

// Without a server tests fail, and say why.
func TestNoServer(t *testing.T) {
	out, err := again(t, "^Test(NewHasTheTables|EmptyHasNone)$", "DATABASE_URL=postgres://"+closedPort(t)).CombinedOutput()
	if err == nil || strings.Count(string(out), "DATABASE_URL") < 2 || !strings.Contains(string(out), "connection refused") || strings.Contains(string(out), "SKIP") {
		t.Errorf("%v\n%s", err, out)
	}
}

const leakVariable = "PGTEST_LEAK"

// TestLeaking leaves a goroutine when TestLeak has it run.
func TestLeaking(t *testing.T) {
	if os.Getenv(leakVariable) != "" {
		go leakedByTest()
	}
}

func leakedByTest() { select {} }

// A process whose tests leave a goroutine fails and shows it.
func TestLeak(t *testing.T) {
	out, err := again(t, "^TestLeaking$", leakVariable+"=1").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "1 goroutines are left") || !strings.Contains(string(out), "leakedByTest") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := again(t, "^TestLeaking$", leakVariable+"=").CombinedOutput(); err != nil {
		t.Errorf("nothing leaks, but: %v\n%s", err, out)
	}
}

// again runs tests of this package in another process.
func again(t *testing.T, tests, env string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], append([]string{"-test.v", "-test.run", tests}, args...)...)
	cmd.Env = append(os.Environ(), env)
	return cmd
}

func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func open(t *testing.T, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func count(t *testing.T, db *sql.DB, query string, args ...any) (n int64) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatalf("%v, in\n%s", err, query)
	}
	return n
}
