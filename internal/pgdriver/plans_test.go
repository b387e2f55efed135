package pgdriver_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/pgtest"
)

// Statements keep their plans until one is slow. Then pgx is told to plan anew for a while,
// in the mode in which it keeps plans; whatever the driver and its mode, they work.
func TestPlans(t *testing.T) {
	d := pgtest.Empty(t)
	for name, c := range map[string]struct {
		db   *sql.DB
		anew bool // after a slow statement
	}{
		"pgx":    {d.OpenMode(t, pgx.QueryExecModeCacheStatement), true},
		"exec":   {d.OpenMode(t, pgx.QueryExecModeExec), false},
		"simple": {d.OpenMode(t, pgx.QueryExecModeSimpleProtocol), false},
		"lib/pq": {d.OpenPQ(t), false},
	} {
		conn, err := c.db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		var p pgdriver.Plans
		kept := func() bool { return p.Keeps(conn) }
		work := func(seconds float64) {
			t.Helper()
			tx, err := conn.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback() }()
			on := p.On(conn, tx)
			var text string
			if err := on.QueryRowContext(t.Context(), `SELECT $2::text FROM pg_sleep($1::float8)`, seconds, "a").Scan(&text); err != nil || text != "a" {
				t.Errorf("%s: %q, %v", name, text, err)
			}
			if all, err := pgdriver.QueryAll(t.Context(), on, func(r *sql.Rows) (n int64, err error) { return n, r.Scan(&n) }, `SELECT unnest($1::text::bigint[])`, "{3,4}"); err != nil || len(all) != 2 {
				t.Errorf("%s: %v, %v", name, all, err)
			}
			if result, err := on.ExecContext(t.Context(), `SELECT 1 WHERE $1::bigint = 7`, int64(7)); err != nil {
				t.Errorf("%s: %v", name, err)
			} else if n, err := result.RowsAffected(); err != nil || n != 1 {
				t.Errorf("%s: %d rows, %v", name, n, err)
			}
			if _, err := on.ExecContext(t.Context(), `SELECT 1`); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		work(0) // as fast as it is
		p.KeepFrom(time.Time{})
		if !kept() {
			t.Errorf("%s: plans are not kept at first", name)
		}
		for range 2 {
			work(0.5)
			if kept() == c.anew {
				t.Errorf("%s: after a slow statement plans are kept: %t", name, kept())
			}
		}
		p.KeepFrom(time.Now())
		if !kept() {
			t.Errorf("%s: plans are not kept after a while", name)
		}
	}
}

// Statements that are planned anew read what those with a plan read, under any setting.
func TestPlansReadTheSame(t *testing.T) {
	conn, err := pgtest.Empty(t).OpenMode(t, pgx.QueryExecModeCacheStatement).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(t.Context(), `SET DateStyle = 'German'`); err != nil {
		t.Fatal(err)
	}
	for _, until := range []time.Time{{}, time.Now().Add(time.Hour)} {
		var p pgdriver.Plans
		p.KeepFrom(until)
		want, got := time.Date(1999, 8, 7, 6, 5, 4, 3000, time.UTC), time.Time{}
		if err := p.On(conn, conn).QueryRowContext(t.Context(), `SELECT $1::timestamptz`, want).Scan(&got); err != nil || !got.Equal(want) {
			t.Errorf("kept: %t: read %v, %v", p.Keeps(conn), got, err)
		}
	}
}

// A statement that is slow each time, as over a slow network, keeps its plan.
func TestSlowNetworkKeepsPlans(t *testing.T) {
	var p pgdriver.Plans
	for _, took := range []time.Duration{300, 310, 1490, 290, 1440} {
		p.Took("SELECT", took*time.Millisecond)
		if !p.KeptAt(time.Now()) {
			t.Errorf("plans are not kept after %v", took*time.Millisecond)
		}
	}
	if p.Took("SELECT", 1450*time.Millisecond); p.KeptAt(time.Now()) {
		t.Error("plans are kept after five times the fastest")
	}
}
