package pgdriver_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// TryStatements detects a proxy that breaks statements every time. Otherwise a worker would
// execute statements of other clients.
func TestTryStatements(t *testing.T) {
	d := pgtest.Empty(t)
	proxy := d.Bounced(t, map[string]string{"default_pool_size": "6"})
	for name, open := range pgtest.BrokenByBouncer {
		t.Run("broken "+name, func(t *testing.T) { tryOften(t, open, proxy, true) })
	}
	for name, open := range pgtest.ThroughBouncer {
		t.Run(name, func(t *testing.T) { tryOften(t, open, proxy, false) })
	}
}

// Without a proxy no statement is mixed up, but it is known whether a proxy would break the
// driver's statements. Some proxies track names of statements, so named ones are tried.
func TestUnnamedStatementsAreRefused(t *testing.T) {
	d := pgtest.Empty(t)
	for name, open := range map[string]pgtest.Opener{
		"pgx describe_exec": pgtest.BrokenByBouncer["pgx describe_exec"], "lib/pq": pgtest.BrokenByBouncer["lib/pq"],
	} {
		if err := pgdriver.TryStatements(t.Context(), pgdriver.Pool{DB: open(t, d)}); !pgdriver.IsMixedUp(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := pgdriver.TryStatements(t.Context(), pgdriver.Pool{DB: pgtest.BrokenByBouncer["pgx cache_statement"](t, d)}); err != nil {
		t.Errorf("statements with names: %v", err)
	}
}

// FindLender detects a pool over another pool, and requires a limit. A discarded connection is
// not reused by the other pool.
func TestPoolOverAnotherPool(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	limited, keepsNone := d.OpenLent(t, 4), d.OpenPQ(t)
	limited.SetMaxOpenConns(4)
	keepsNone.SetMaxIdleConns(0)
	keepsNonePgx := d.OpenMode(t, pgx.QueryExecModeCacheStatement)
	keepsNonePgx.SetMaxIdleConns(0)
	for name, test := range map[string]struct {
		db   *sql.DB
		lent bool
		err  error
	}{
		"a pool of its own":       {d.DB, false, nil},
		"one that keeps none":     {keepsNonePgx, false, nil},
		"one of lib/pq":           {keepsNone, false, nil},
		"another's":               {d.OpenLent(t, 4), true, pgdriver.ErrNoLimit},
		"another's, with a limit": {limited, true, nil},
		"another's of one":        {d.OpenLent(t, 1), true, pgdriver.ErrNoLimit},
	} {
		if lent, err := (pgdriver.Pool{DB: test.db}).FindLender(t.Context()); lent != test.lent || err != test.err {
			t.Errorf("%s: lent %v, %v, want %v, %v", name, lent, err, test.lent, test.err)
		}
	}
	db := d.OpenLent(t, 1)
	session := func(conn *sql.Conn) (pid int64) {
		if err := conn.QueryRowContext(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
			t.Fatal(err)
		}
		return pid
	}
	take := func() *sql.Conn {
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	conn := take()
	spoiled := session(conn)
	pgdriver.Discard(conn)
	conn = take()
	defer conn.Close()
	if session(conn) == spoiled {
		t.Error("a session that was discarded is in the other pool")
	}
}

// A pool from which other users close connections at the same time is not reported as lent.
func TestBusyPoolIsNotLent(t *testing.T) {
	t.Parallel()
	cfg, err := pgx.ParseConfig(pgtest.Empty(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	var db *sql.DB
	var held []*sql.Conn
	hold := func() {
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, conn)
	}
	free := func() {
		if err := held[0].Close(); err != nil {
			t.Fatal(err)
		}
		held = held[1:]
	}
	busy := true // while busy, the other user below does nothing
	db = stdlib.OpenDB(*cfg, stdlib.OptionResetSession(func(context.Context, *pgx.Conn) error {
		if !busy && len(held) > 2 { // another user has two connections, and takes one again
			busy = true
			free()
			free()
			hold()
			busy = false
		}
		return nil
	}))
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxIdleConns(1)
	for range 9 {
		hold()
	}
	free()
	busy = false
	lent, err := (pgdriver.Pool{DB: db}).FindLender(t.Context())
	if closed := db.Stats().MaxIdleClosed; lent || err != nil || closed == 0 {
		t.Errorf("lent %v, %v; %d connections were closed", lent, err, closed)
	}
	for len(held) > 0 {
		free()
	}
}

func tryOften(t *testing.T, open pgtest.Opener, proxy *pgtest.Database, broken bool) {
	t.Parallel() // they use each other's sessions
	for range 20 {
		db := open(t, proxy)
		p, err := pgdriver.FindPooling(t.Context(), pgdriver.Pool{DB: db})
		if err != nil || !p.Pooled {
			t.Fatalf("looked for a proxy and found %+v, %v", p, err)
		}
		if err := pgdriver.TryStatements(t.Context(), pgdriver.Pool{DB: db}); pgdriver.IsMixedUp(err) != broken || err != nil && !broken {
			t.Fatalf("tried statements: %v", err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
