package network

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/sim/fault"
)

// behind opens connections to d through a network.
func behind(t *testing.T, d *pgtest.Database, mode pgx.QueryExecMode) (*Network, *sql.DB) {
	t.Helper()
	config, err := pgx.ParseConfig(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	config.DefaultQueryExecMode = mode
	config.RuntimeParams["application_name"] = t.Name()
	n := New(nil)
	n.Carry(config)
	db := stdlib.OpenDB(*config)
	db.SetMaxOpenConns(2)
	t.Cleanup(func() {
		n.CleanUp()
		_ = db.Close() // its connections may be broken
	})
	return n, db
}

func connect(t *testing.T, db *sql.DB) *sql.Conn {
	t.Helper()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // may be broken
	return conn
}

// sessions counts the server's sessions of this test.
func sessions(t *testing.T, d *pgtest.Database) (n int) {
	t.Helper()
	if err := d.DB.QueryRowContext(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1 AND datname = current_database()`, t.Name()).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestCommitIsLost(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	d.Exec(t, `CREATE TABLE marks (mark TEXT)`)
	for _, answered := range []bool{false, true} {
		for _, mode := range ExecModes {
			name := map[bool]string{false: "before it is sent", true: "after it has happened"}[answered] + ", " + mode.String()
			t.Run(name, func(t *testing.T) {
				n, db := behind(t, d, mode)
				conn := connect(t, db)
				tx, err := conn.BeginTx(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				wire, err := ConnOf(conn)
				if err != nil {
					t.Fatal(err)
				}
				injected := false
				wire.AtCommit(answered, func() { injected = true; n.Cut() })
				if _, err := tx.ExecContext(t.Context(), `INSERT INTO marks VALUES ($1::text)`, name); err != nil {
					t.Fatal(err)
				}
				if injected {
					t.Fatal("injected before the commit")
				}
				if err := tx.Commit(); err == nil || !injected {
					t.Fatalf("commit returned %v, injected: %v; want an error and the strike", err, injected)
				}
				eventually(t, "the server's session to end", func() bool { return sessions(t, d) == 0 })
				var happened bool
				if err := db.QueryRowContext(t.Context(), `SELECT EXISTS (SELECT FROM marks WHERE mark = $1::text)`, name).Scan(&happened); err != nil {
					t.Fatal(err)
				}
				if happened != answered {
					t.Errorf("committed: %v, want %v", happened, answered)
				}
			})
		}
	}
}

func TestCutConnectionsAreReplaced(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	n, db := behind(t, d, pgx.QueryExecModeCacheStatement)
	conn := connect(t, db)
	if err := conn.PingContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.Cut()
	if _, err := conn.ExecContext(t.Context(), `SELECT 1`); err == nil {
		t.Error("a connection worked on after it was cut")
	}
	if err := db.PingContext(t.Context()); err != nil {
		t.Errorf("no new connection after a cut: %v", err)
	}
}

func TestCrashSaysNothingAndComesNotBack(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	n, db := behind(t, d, pgx.QueryExecModeCacheStatement)
	conn := connect(t, db)
	if err := conn.PingContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.Crash()
	eventually(t, "the server's session to end", func() bool { return sessions(t, d) == 0 })
	if err := db.PingContext(t.Context()); err == nil {
		t.Error("a crashed process connected again")
	}
}

func TestVanishedMachineStaysHalfOpenUntilCleanedUp(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	n, db := behind(t, d, pgx.QueryExecModeCacheStatement)
	conn := connect(t, db)
	tx, err := conn.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	n.Vanish()
	if _, err := tx.ExecContext(t.Context(), `SELECT 1`); err == nil {
		t.Error("a vanished machine executed a statement")
	}
	_ = tx.Rollback() // nobody hears it
	if err := db.PingContext(t.Context()); err == nil {
		t.Error("a vanished machine connected again")
	}
	if sessions(t, d) != 1 {
		t.Error("the server noticed the end of a half open connection")
	}
	n.CleanUp()
	eventually(t, "the server's session to end", func() bool { return sessions(t, d) == 0 })
}

// Nobody gets an error of a connection that died in silence: it ends with the
// patience of who waits, and the server keeps its session.
func TestSwallowedConnectionIsSilent(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	n, db := behind(t, d, pgx.QueryExecModeExec)
	n.dice = fault.Dice(1, t.Name())
	conn := connect(t, db)
	for n.Swallow() == 0 { // it takes half of them
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := conn.ExecContext(ctx, `SELECT 1`); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a statement on it: %v, want that its time is over", err)
	}
	if err := db.PingContext(t.Context()); err != nil {
		t.Errorf("a new connection: %v", err)
	}
	if got := sessions(t, d); got != 2 {
		t.Errorf("the server has %d sessions, want the lost one and the new one", got)
	}
	n.CleanUp()
	eventually(t, "the server to be told", func() bool { return sessions(t, d) == 0 })
}

func TestStallEndsWithRelease(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	n, db := behind(t, d, pgx.QueryExecModeCacheStatement)
	conn := connect(t, db)
	if err := conn.PingContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.Stall()
	done := make(chan error, 1)
	go func() {
		_, err := conn.ExecContext(t.Context(), `SELECT 1`)
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("a statement ended in a stall: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	n.Release()
	if err := <-done; err != nil {
		t.Errorf("a statement after a stall: %v", err)
	}
}

func TestStallHoldsBackAnswersAndCloses(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	n, db := behind(t, d, pgx.QueryExecModeCacheStatement)
	conn := connect(t, db)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := conn.ExecContext(ctx, `SELECT pg_advisory_lock(1)`)
		done <- err
	}()
	held := func() bool {
		var n int
		if err := d.DB.QueryRowContext(t.Context(), `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objid = 1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n > 0
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	other := connect(t, d.DB)
	if _, err := other.ExecContext(t.Context(), `SELECT pg_advisory_lock(2)`); err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := conn.ExecContext(ctx, `SELECT pg_advisory_lock(2)`)
		done <- err
	}()
	eventually(t, "the statement to wait for a lock", func() bool {
		var n int
		if err := d.DB.QueryRowContext(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1 AND wait_event_type = 'Lock'`, t.Name()).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n > 0
	})
	n.Stall()
	if _, err := other.ExecContext(t.Context(), `SELECT pg_advisory_unlock(2)`); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("a statement given up in a stall: %v", err)
	}
	_ = conn.Close() // the server is not to hear it
	if !held() {
		t.Error("the server heard in a stall that the connection was closed")
	}
	n.Release()
	eventually(t, "the lock to be freed", func() bool { return !held() })
}
