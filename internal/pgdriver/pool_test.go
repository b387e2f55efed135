package pgdriver_test

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// everyMode returns each driver in each of its modes.
func everyMode() map[string]pgtest.Opener {
	all := maps.Clone(pgtest.ThroughBouncer)
	maps.Copy(all, pgtest.BrokenByBouncer)
	return all
}

// The pool closes a connection with an open transaction, so that it is rolled back and never
// reused.
func TestPoolRefusesTransactionsLeftOpen(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	d.Exec(t, `CREATE TABLE left_open (n int)`)
	for driver, open := range everyMode() {
		for begin, work := range map[string]string{
			"BEGIN":                                 `INSERT INTO left_open VALUES (1)`,
			"BEGIN ISOLATION LEVEL REPEATABLE READ": `SELECT 1`,
			"BEGIN ":                                `SELECT 1 / 0`,
		} {
			t.Run(driver+" "+begin+work, func(t *testing.T) {
				t.Parallel()
				db := open(t, d)
				db.SetMaxOpenConns(1)
				_, err := db.ExecContext(t.Context(), begin)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = db.ExecContext(t.Context(), work) // pgx takes another connection for it
				pool := pgdriver.Pool{DB: db}
				refused, n := 0, 0
				for range 3 {
					err := pool.QueryRowContext(t.Context(), `SELECT count(*) FROM left_open WHERE pg_current_xact_id_if_assigned() IS NOT NULL`).Scan(&n)
					switch {
					case errors.Is(err, pgdriver.ErrLeftOpen):
						refused++
					case err != nil:
						t.Fatal(err)
					}
				}
				want := 0
				if strings.HasPrefix(driver, "lib/pq") {
					want = 1
				}
				if n != 0 || refused != want {
					t.Errorf("saw %d rows of the transaction that was left open; refused %d times, want %d", n, refused, want)
				}
			})
		}
	}
}

// Statements outside of a transaction succeed with every driver.
func TestPoolAllowsStatementsOutsideTransactions(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	for driver, open := range everyMode() {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			db := open(t, d)
			db.SetMaxOpenConns(1) // a connection that is not returned blocks the next statement
			pool := pgdriver.Pool{DB: db}
			for n := range 50 {
				checkPool(t, t.Context(), pool, n)
			}
		})
	}
}

func checkPool(t *testing.T, ctx context.Context, pool pgdriver.Pool, n int) {
	t.Helper()
	if _, err := pool.ExecContext(ctx, `SELECT 1`); err != nil {
		t.Fatal(err)
	}
	var got int
	if err := pool.QueryRowContext(ctx, `SELECT $1::int`, n).Scan(&got); err != nil || got != n {
		t.Fatal(got, err)
	}
	all, err := pgdriver.QueryAll(ctx, pool, func(r *sql.Rows) (n int, err error) { return n, r.Scan(&n) }, `SELECT generate_series(1, $1::int)`, 3)
	if err != nil || len(all) != 3 {
		t.Fatal(all, err)
	}
	tx, err := pool.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	conn, err := pool.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
}

// pgx does not set client_encoding, so the session has that of the role, the database or an old
// server. lib/pq always sets UTF8.
func TestPoolRefusesOtherEncodings(t *testing.T) {
	t.Parallel()
	for encoding, ok := range map[string]bool{"UTF8": true, "SQL_ASCII": true, "LATIN1": false, "WIN1252": false} {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			d := pgtest.Empty(t)
			var name string
			if err := d.DB.QueryRow(`SELECT quote_ident(current_database())`).Scan(&name); err != nil {
				t.Fatal(err)
			}
			d.Exec(t, `ALTER DATABASE `+name+` SET client_encoding = `+encoding)
			var text string
			read := func(db *sql.DB) error {
				return pgdriver.Pool{DB: db}.QueryRowContext(t.Context(), `SELECT 'Größe'`).Scan(&text)
			}
			err := read(d.OpenMode(t, pgx.QueryExecModeCacheStatement))
			if errors.Is(err, pgdriver.ErrEncoding) == ok {
				t.Errorf("pgx: %v", err)
			}
			if err := read(d.OpenPQ(t)); err != nil || text != "Größe" {
				t.Errorf("lib/pq: %q, %v", text, err)
			}
		})
	}
}

// pgx reads times of any DateStyle if they are sent in binary. lib/pq sets ISO.
func TestPoolRefusesUnreadableTimes(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	var name string
	if err := d.DB.QueryRow(`SELECT quote_ident(current_database())`).Scan(&name); err != nil {
		t.Fatal(err)
	}
	d.Exec(t, `ALTER DATABASE `+name+` SET DateStyle = 'SQL, DMY'`)
	pools := map[string]*sql.DB{"lib/pq": d.OpenPQ(t)}
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		pools[mode.String()] = d.OpenMode(t, mode)
	}
	for mode, db := range pools {
		var at time.Time
		err := pgdriver.Pool{DB: db}.QueryRowContext(t.Context(), `SELECT timestamptz '1999-08-07 06:05:04+00'`).Scan(&at)
		refused := mode == "exec" || mode == "simple protocol"
		if errors.Is(err, pgdriver.ErrFormats) != refused || !refused && (err != nil || at.Unix() != 934005904) {
			t.Errorf("%s: read %v, %v", mode, at, err)
		}
	}
}

// A dead connection in the pool does not fail its next user. Most drivers notice only when the
// connection is used.
func TestPoolPassesOverDeadConnections(t *testing.T) {
	d := pgtest.Empty(t)
	for name, db := range map[string]*sql.DB{"pgx": d.OpenMode(t, pgx.QueryExecModeCacheStatement), "lib/pq": d.OpenPQ(t)} {
		pool := pgdriver.NewPool(db)
		var conns []*sql.Conn
		for range 5 {
			conn, err := pool.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, conn)
		}
		for _, conn := range conns {
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
		}
		const others = ` FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`
		d.Exec(t, `SELECT pg_terminate_backend(pid)`+others)
		var n int
		pgtest.Poll(func() bool { return d.DB.QueryRow(`SELECT count(*)`+others).Scan(&n) == nil && n == 0 })
		if err := pool.QueryRowContext(t.Context(), `SELECT $1::int`, 7).Scan(&n); err != nil || n != 7 {
			t.Errorf("%s: read %d, %v", name, n, err)
		}
	}
}

// A pool that keeps idle connections has them of its own.
func TestPoolWithIdleConnectionsHasNoLender(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t).OpenMode(t, pgx.QueryExecModeExec)
	db.SetMaxOpenConns(5)
	db.SetMaxIdleConns(1)
	one, err := db.Conn(t.Context())
	two, also := db.Conn(t.Context())
	if err := errors.Join(err, also); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(one.Close(), two.Close()); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	if _, err := (pgdriver.Pool{DB: db}).Conn(ended); !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "pgxtx.DB") {
		t.Error(err)
	}
}

// The error of a connection that did not come in time says what kept it.
func TestPoolTellsWhyNoConnectionComes(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	lent := d.OpenLent(t, 1)
	lent.SetMaxOpenConns(5)
	own := d.OpenMode(t, pgx.QueryExecModeExec)
	own.SetMaxOpenConns(1)
	for text, db := range map[string]*sql.DB{"all 1 connections of db are taken, raise db.SetMaxOpenConns": own, "see pgxtx.DB": lent} {
		pool := pgdriver.Pool{DB: db}
		if err := db.PingContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		held, err := pool.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		for limit := time.Millisecond; ; limit *= 2 { // database/sql asks for a connection only if ctx has not ended
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			_, err = pool.Conn(ctx)
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), text) || limit > time.Minute {
				break
			}
		}
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %q", err, text)
		}
	}
}

// If the server is silent, the error of a new connection names no limit.
func TestPoolWithASilentServerNamesNoLimit(t *testing.T) {
	t.Parallel()
	cfg, err := pgx.ParseConfig(pgtest.Empty(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	var silent atomic.Bool
	dial := cfg.DialFunc
	cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if silent.Load() {
			return nil, context.DeadlineExceeded
		}
		return dial(ctx, network, address)
	}
	db := stdlib.OpenDB(*cfg)
	defer db.Close()
	db.SetMaxOpenConns(3)
	db.SetMaxIdleConns(1)
	pool := pgdriver.Pool{DB: db}
	var held []*sql.Conn
	for range 2 {
		conn, err := pool.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, conn)
	}
	for _, conn := range held {
		_ = conn.Close()
	}
	if held[0], err = pool.Conn(t.Context()); err != nil || db.Stats().MaxIdleClosed == 0 || db.Stats().Idle > 0 {
		t.Fatalf("%v, %+v", err, db.Stats())
	}
	defer held[0].Close()
	silent.Store(true)
	if _, err = pool.Conn(t.Context()); !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "of db") || strings.Contains(err.Error(), "pgxpool") {
		t.Error(err)
	}
}

// Living passes all connections that the server has ended while they were idle.
func TestLivingPassesDeadConnections(t *testing.T) {
	d := pgtest.Empty(t)
	db := d.OpenPQ(t)
	const n = 4
	db.SetMaxIdleConns(n)
	var conns []*sql.Conn
	pids := make([]int64, n)
	for i := range pids {
		conn, err := db.Conn(t.Context())
		if err == nil {
			err = conn.QueryRowContext(t.Context(), `SELECT pg_backend_pid()`).Scan(&pids[i])
		}
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		_ = conn.Close()
	}
	for _, pid := range pids {
		d.Exec(t, `SELECT pg_terminate_backend($1::int)`, pid)
	}
	if !pgtest.Poll(func() (ended bool) {
		if err := d.DB.QueryRow(`SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = ANY ($1::int[])`, pids).Scan(&ended); err != nil {
			t.Fatal(err)
		}
		return ended
	}) {
		t.Fatal("waited in vain for the connections to end")
	}
	tries := 0
	err := pgdriver.Living(t.Context(), db, func() error {
		tries++
		conn, err := db.Conn(t.Context())
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.ExecContext(t.Context(), `SELECT 1`) // database/sql repeats it on no other connection
		return err
	})
	if err != nil || tries < 2 {
		t.Errorf("after %d tries: %v", tries, err)
	}
}
