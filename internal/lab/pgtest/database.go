package pgtest

import (
	"context"
	"database/sql"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq" // for OpenPQ

	"github.com/pgfrontier/worker/internal/pgdriver"
)

// Database is a database of one test, dropped in its cleanup.
type Database struct {
	URL string  // the connection string; pgx and lib/pq understand it
	DB  *sql.DB // over pgx/stdlib in its default mode; closed in cleanup
}

// New makes a database with all tables of the library under their default
// names.
func New(t testing.TB) *Database {
	t.Helper()
	return common.newDatabase(t)
}

// Alone makes such a database on a server that has no transactions of other
// packages, nor of this one unless its tests run in parallel. It is for a log that
// does not name its sequence, whose frontier waits for every transaction of the
// server. On a server that is named (-db, DATABASE_URL) it is as New.
func Alone(t testing.TB) *Database {
	t.Helper()
	return apart.newDatabase(t)
}

func (s *shared) newDatabase(t testing.TB) *Database {
	t.Helper()
	if err := s.ensureServer(); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	if err := s.ensure(&s.events, "template", applyEvents); err != nil {
		t.Fatalf("pgtest: the template with all tables: %v", err)
	}
	return s.copyOf(t, s.events.name)
}

// Jobs makes a database with the tables of jobs under their default names, and no
// others. A copy costs the server a fifth of what the migration does.
func Jobs(t testing.TB) *Database {
	t.Helper()
	Server(t)
	if err := common.ensure(&common.jobs, "jobs", applyJobs); err != nil {
		t.Fatalf("pgtest: the template with the tables of jobs: %v", err)
	}
	return common.copyOf(t, common.jobs.name)
}

// Empty makes a database without any tables.
func Empty(t testing.TB) *Database {
	t.Helper()
	Server(t)
	return common.copyOf(t, pristine)
}

// Latin1 makes a database without any tables, whose encoding holds few characters.
func Latin1(t testing.TB) *Database {
	t.Helper()
	Server(t)
	d := common.copyOf(t, pristine, `ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'`)
	return &Database{URL: d.with("client_encoding=UTF8"), DB: d.OpenSet(t, "client_encoding", "UTF8")}
}

func (s *shared) copyOf(t testing.TB, template string, options ...string) *Database {
	t.Helper()
	name := s.nextName()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := s.create(ctx, name, template, options...); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		defer cancel()
		if err := s.drop(ctx, name); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	d := &Database{URL: s.server.URL(name)}
	d.DB = d.open(t, "pgx")
	return d
}

// Exec runs a statement and fails the test if that fails.
func (d *Database) Exec(t testing.TB, query string, args ...any) {
	t.Helper()
	// Not the test's context: it has ended when cleanups run.
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := DespiteDeadlocks(ctx, func() error {
		_, err := d.DB.ExecContext(ctx, query, args...)
		return err
	}); err != nil {
		t.Fatalf("%v, in\n%s", err, query)
	}
}

// DespiteDeadlocks repeats do while PostgreSQL ends its transaction as the victim of a deadlock,
// until ctx ends. DDL and TRUNCATE take their locks in another order than the workers beside them.
func DespiteDeadlocks(ctx context.Context, do func() error) error {
	for {
		err := do()
		if pgdriver.SQLState(err) != pgdriver.DeadlockDetected || ctx.Err() != nil {
			return err
		}
	}
}

// OpenMode opens another pool on the database, over pgx/stdlib in that mode. It
// is closed in cleanup.
func (d *Database) OpenMode(t testing.TB, mode pgx.QueryExecMode) *sql.DB {
	t.Helper()
	return d.InMode(mode).open(t, "pgx")
}

// InMode is the database with a way in which pgx sends statements.
func (d *Database) InMode(mode pgx.QueryExecMode) *Database {
	return &Database{URL: d.with("default_query_exec_mode=" + strings.ReplaceAll(mode.String(), " ", "_"))}
}

// with is the connection string with one more parameter.
func (d *Database) with(parameter string) string {
	if strings.Contains(d.URL, "?") {
		return d.URL + "&" + parameter
	}
	return d.URL + "?" + parameter
}

// OpenSet opens another pool on the database, over pgx, with a setting in its sessions. It
// is closed in cleanup.
func (d *Database) OpenSet(t testing.TB, name, value string) *sql.DB {
	t.Helper()
	cfg, err := pgx.ParseConfig(d.URL)
	if err != nil {
		t.Fatal("pgtest: pgx does not understand the connection string")
	}
	cfg.RuntimeParams[name] = value
	db := closed(t, stdlib.OpenDB(*cfg))
	db.SetMaxIdleConns(16)
	return db
}

// OpenAway opens another pool on the database, over pgx, whose connections are refused until back
// is called. It is closed in cleanup.
func (d *Database) OpenAway(t testing.TB) (db *sql.DB, back func()) {
	t.Helper()
	cfg, err := pgx.ParseConfig(d.URL)
	if err != nil {
		t.Fatal("pgtest: pgx does not understand the connection string")
	}
	var there atomic.Bool
	dial := cfg.DialFunc
	cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if !there.Load() {
			return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
		}
		return dial(ctx, network, address)
	}
	return closed(t, stdlib.OpenDB(*cfg)), func() { there.Store(true) }
}

// OpenPQ opens another pool on the database, over lib/pq. It is closed in
// cleanup.
func (d *Database) OpenPQ(t testing.TB) *sql.DB {
	t.Helper()
	return d.open(t, "postgres")
}

// OpenLent opens a pool of database/sql whose connections are those of a pgxpool.Pool of n.
func (d *Database) OpenLent(t testing.TB, n int32) *sql.DB {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(d.URL)
	if err != nil {
		t.Fatal("pgtest: pgxpool does not understand the connection string")
	}
	cfg.MaxConns = n
	lender, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatalf("pgtest: make a pgxpool.Pool: %v", err)
	}
	t.Cleanup(lender.Close)
	db := closed(t, stdlib.OpenDBFromPool(lender))
	db.SetMaxIdleConns(0) // as OpenDBFromPool sets it
	return db
}

func (d *Database) open(t testing.TB, driver string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, d.URL)
	if err != nil {
		t.Fatalf("pgtest: driver %q does not understand the connection string", driver)
	}
	return closed(t, db)
}

// closed closes a pool in cleanup. It keeps the connections that a few workers use: by default
// it would keep two, and a new one costs the server a process.
func closed(t testing.TB, db *sql.DB) *sql.DB {
	db.SetMaxIdleConns(16)
	t.Cleanup(func() { _ = db.Close() }) // an error says that the server has ended a connection
	return db
}

// Here is a condition on pg_locks: the session is one of this database.
const Here = `pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())`

// Poll calls done until it reports true, and reports whether it did within
// Patience. It pauses for a tenth of the time that has passed, 1 to 20 ms: what
// takes long is asked seldom, since most conditions are queries.
func Poll(done func() bool) bool { return poll(done, 20*time.Millisecond) }

// PollLasting is Poll for a condition that stays true, such as the end of a job. It
// pauses for up to 200 ms.
func PollLasting(done func() bool) bool { return poll(done, 200*time.Millisecond) }

func poll(done func() bool, longest time.Duration) bool {
	for began := time.Now(); !done(); {
		passed := time.Since(began)
		if passed > Patience {
			return false
		}
		time.Sleep(min(max(passed/10, time.Millisecond), longest))
	}
	return true
}

// AwaitUnused waits until no connection of db is in use. A connection comes back a moment
// after the rows that it brought.
func AwaitUnused(t testing.TB, db *sql.DB) {
	t.Helper()
	if !Poll(func() bool { return db.Stats().InUse == 0 }) {
		t.Errorf("%d connections are still in use", db.Stats().InUse)
	}
}

// AwaitBlocked waits until a session of the database waits for a lock.
func AwaitBlocked(t testing.TB, db *sql.DB) {
	t.Helper()
	blocked := 0
	if !Poll(func() bool {
		if err := db.QueryRow(`SELECT count(*) FROM pg_locks WHERE NOT granted AND ` + Here).Scan(&blocked); err != nil {
			t.Fatal(err)
		}
		return blocked > 0
	}) {
		t.Fatal("waited in vain for a session to wait for a lock")
	}
}

// AwaitBlockedFor waits until a statement in the database that waits for a lock has lasted for
// longer than d. It returns when the last such statement began.
func AwaitBlockedFor(t testing.TB, db *sql.DB, d time.Duration) (began time.Time) {
	t.Helper()
	var at sql.NullTime
	if !Poll(func() bool {
		if err := db.QueryRow(`SELECT max(query_start) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
			AND clock_timestamp() - query_start > $1::bigint * interval '1 microsecond'`, d.Microseconds()).Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at.Valid
	}) {
		t.Fatalf("waited in vain for a session to wait for a lock for %v", d)
	}
	return at.Time
}

// DropRows makes a trigger drop the rows of a kind of statement on a table, such as "INSERT", without
// an error.
func (d *Database) DropRows(t testing.TB, on, table string) {
	t.Helper()
	d.Exec(t, `CREATE OR REPLACE FUNCTION drop_rows() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
	d.Exec(t, `CREATE TRIGGER drop_rows BEFORE `+on+` ON `+table+` FOR EACH ROW EXECUTE FUNCTION drop_rows()`)
}
