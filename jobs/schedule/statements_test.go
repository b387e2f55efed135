package schedule

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/store"
)

// newTables makes the tables of jobs.
func newTables(t *testing.T) (*pgtest.Database, tables.Jobs) {
	t.Helper()
	d := pgtest.Jobs(t)
	names, err := tables.ParseJobs(store.Names{})
	if err != nil {
		t.Fatal(err)
	}
	return d, names
}

// A schedule advances only from the tick and with the times that the process has read. Otherwise
// another process was faster, or another program has given it other times.
func TestAdvance(t *testing.T) {
	t.Parallel()
	d, names := newTables(t)
	tick := time.Date(2026, 1, 1, 0, 0, 0, 1_000, time.UTC)
	after := tick.Add(time.Hour)
	if r, _, err := hold(t.Context(), d.DB, names.Schedules, "s", "g"); err != nil || r.hash != "g" || !r.next.IsZero() {
		t.Fatal(r, err)
	}
	if err := place(t.Context(), d.DB, names.Schedules, "s", "h", tick); err != nil {
		t.Fatal(err)
	}
	if r, _, err := hold(t.Context(), d.DB, names.Schedules, "s", "i"); err != nil || r.hash != "h" || !r.next.Equal(tick) {
		t.Errorf("held: %+v, %v", r, err)
	}
	for _, c := range []struct {
		about string
		read  row
		moves bool
	}{
		{"another tick", row{name: "s", hash: "h", next: tick.Add(time.Microsecond)}, false},
		{"other times", row{name: "s", hash: "i", next: tick}, false},
		{"another name", row{name: "t", hash: "h", next: tick}, false},
		{"what there is", row{name: "s", hash: "h", next: tick}, true},
		{"the same once more", row{name: "s", hash: "h", next: tick}, false},
	} {
		if _, moved, err := advance(t.Context(), d.DB, names.Schedules, c.read, tick, after); err != nil || moved != c.moves {
			t.Errorf("%s: moved %t, %v", c.about, moved, err)
		}
	}
	rows, _, err := readRows(t.Context(), d.DB, names.Schedules, []string{"s"})
	if err != nil || len(rows) != 1 || !rows[0].next.Equal(after) {
		t.Errorf("it is at %+v, %v, want %v", rows, err, after)
	}
}

// The table stores each tick to the microsecond, in any year.
func TestTicksAreExact(t *testing.T) {
	t.Parallel()
	d, names := newTables(t)
	if _, _, err := hold(t.Context(), d.DB, names.Schedules, "s", "h"); err != nil {
		t.Fatal(err)
	}
	for year := 1970; year < 2200; year++ {
		tick := time.Date(year, 3, 5, 7, 11, 13, (year*7919)%1_000_000*1_000, time.UTC)
		if err := place(t.Context(), d.DB, names.Schedules, "s", "h", tick); err != nil {
			t.Fatal(err)
		}
		rows, now, err := readRows(t.Context(), d.DB, names.Schedules, []string{"s"})
		if err != nil || !rows[0].next.Equal(tick) {
			t.Errorf("placed at %v, found at %v, %v", tick, rows[0].next, err)
		}
		if age := time.Since(now); age < -time.Minute || age > time.Minute {
			t.Fatalf("the server's clock is %v behind", age)
		}
	}
}

// The server ends a transaction that holds the row of a schedule and becomes idle.
func TestHolderIsBounded(t *testing.T) {
	t.Parallel()
	d, names := newTables(t)
	tick := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	conn, err := d.DB.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // returns it to the pool
	limit := func(q store.Querier) (limit string) {
		if err := q.QueryRowContext(t.Context(), `SHOW idle_in_transaction_session_timeout`).Scan(&limit); err != nil {
			t.Fatal(err)
		}
		return limit
	}
	for name, holds := range map[string]func(tx *sql.Tx) error{
		"hold": func(tx *sql.Tx) error {
			_, _, err := hold(t.Context(), tx, names.Schedules, "s", "h")
			return errors.Join(err, place(t.Context(), tx, names.Schedules, "s", "h", tick))
		},
		"advance": func(tx *sql.Tx) error {
			_, err := tx.Exec(`INSERT INTO jobs_schedules (name, hash, next_at) VALUES ('s', 'h', $1)`, tick)
			_, _, moved := advance(t.Context(), tx, names.Schedules, row{name: "s", hash: "h", next: tick}, tick, tick.Add(time.Hour))
			return errors.Join(err, moved)
		},
	} {
		tx, err := conn.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := holds(tx); err != nil {
			t.Fatal(err)
		}
		if got := limit(tx); got != "5s" {
			t.Errorf("%s: it is ended after %s", name, got)
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		if got := limit(conn); got != "0" {
			t.Errorf("%s: the limit stays: %s", name, got)
		}
	}
}

type hourJob struct{ Tick time.Time }

func (hourJob) Kind() string { return "hour" }

// hours makes a Scheduler that ticks each hour, and returns the hash of earlier builds.
func hours(t *testing.T, d *pgtest.Database) (s *Scheduler, sampled string) {
	t.Helper()
	s = New(d.DB, jobs.NewClient(d.DB), Job("s", Every(time.Hour), func(tick time.Time) jobs.Args { return hourJob{tick} })).WithLogger(slog.New(slog.DiscardHandler))
	_, sampled, err := fingerprint(Every(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return s, sampled
}

func runs(t *testing.T, s *Scheduler) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Start: %v", err)
		}
	})
}

// The row of an earlier build, whose hash is of the sample alone, stays unchanged for the same
// schedule. So both builds run side by side, and the due tick is enqueued once.
func TestEarlierBuildKeepsItsSchedule(t *testing.T) {
	t.Parallel()
	d, _ := newTables(t)
	s, sampled := hours(t, d)
	d.Exec(t, `INSERT INTO jobs_schedules (name, hash, last_at, next_at) VALUES ('s', $1, date_trunc('hour', now()) - interval '1 hour', date_trunc('hour', now()))`, sampled)
	runs(t, s)
	if !pgtest.Poll(func() bool { return s.Status()[0].Jobs > 0 && s.Status()[0].Next.After(s.Status()[0].Last) }) {
		t.Fatalf("waited in vain for the tick that was due: %+v", s.Status())
	}
	var hash string
	var n int
	if err := d.DB.QueryRow(`SELECT hash, (SELECT count(*) FROM jobs WHERE (args->>'Tick')::timestamptz = s.last_at) FROM jobs_schedules AS s`).Scan(&hash, &n); err != nil {
		t.Fatal(err)
	}
	if hash != sampled || n != 1 {
		t.Errorf("the row has the hash %s, want that of the earlier build; the tick has %d jobs", hash, n)
	}
}

// A program whose times have the same sample, and which skips ticks, is detected once it skips one.
func TestEarlierBuildThatSkipsTicksStopsEnqueueing(t *testing.T) {
	t.Parallel()
	d, _ := newTables(t)
	s, sampled := hours(t, d)
	d.Exec(t, `INSERT INTO jobs_schedules (name, hash, next_at) VALUES ('s', $1, date_trunc('hour', now()))`, sampled)
	runs(t, s)
	if !pgtest.Poll(func() bool { return s.Status()[0].Jobs > 0 }) {
		t.Fatal("waited in vain for the tick that was due")
	}
	d.Exec(t, `UPDATE jobs_schedules SET next_at = date_trunc('hour', now()) + interval '5 hours'`)
	if !pgtest.Poll(func() bool {
		var n int
		return d.DB.QueryRow(`SELECT count(*) FROM jobs_schedules WHERE hash = $1 AND next_at <= now() + interval '1 hour'`, s.all[0].hash).Scan(&n) == nil && n == 1
	}) {
		t.Error("the row was not placed again")
	}
}

// A Scheduler that starts waits for a row that another process holds, whatever time limits its role
// has.
func TestStartWaitsBeyondTheTimeLimitsOfTheRole(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{"lock_timeout", "statement_timeout"} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			d, _ := newTables(t)
			tx, err := d.DB.Begin()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback() }()
			if _, err := tx.Exec(`INSERT INTO jobs_schedules (name, hash) VALUES ('s', 'h')`); err != nil { // hold would set its own limit
				t.Fatal(err)
			}
			db := d.OpenSet(t, setting, "2000") // milliseconds: enough for any other statement
			s := New(db, jobs.NewClient(db), Job("s", Every(time.Hour), func(time.Time) jobs.Args { return nil }))
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- s.Start(ctx) }()
			if setting == "lock_timeout" {
				pgtest.AwaitBlockedFor(t, d.DB, 2500*time.Millisecond)
			} else {
				first := pgtest.AwaitBlockedFor(t, d.DB, 0)
				if !pgtest.Poll(func() bool { return pgtest.AwaitBlockedFor(t, d.DB, 0).After(first) }) {
					t.Fatal("waited in vain for another try")
				}
			}
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			if !pgtest.Poll(func() bool { return !s.Status()[0].Next.IsZero() }) {
				t.Error("the schedule was not placed")
			}
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("Start returned %v", err)
			}
		})
	}
}
