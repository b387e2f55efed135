package pgdriver_test

import (
	"database/sql"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// A statement keeps its plan until it is slow. Then pgx replans it for a while in the mode that
// keeps plans. Every other driver and mode works unchanged.
func TestPlans(t *testing.T) {
	d := pgtest.Empty(t)
	for name, c := range map[string]struct {
		db      *sql.DB
		replans bool // after a slow statement
	}{
		"pgx":             {d.OpenMode(t, pgx.QueryExecModeCacheStatement), true},
		"exec":            {d.OpenMode(t, pgx.QueryExecModeExec), false},
		"simple":          {d.OpenMode(t, pgx.QueryExecModeSimpleProtocol), false},
		"lib/pq":          {d.OpenPQ(t), false},
		"no descriptions": {(&pgtest.Database{URL: d.URL + "&description_cache_capacity=0"}).OpenMode(t, pgx.QueryExecModeCacheStatement), false},
	} {
		conn, err := c.db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		tx, err := conn.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		var p pgdriver.Plans
		on := p.On(conn, tx) // of a long-lived session
		const slow, list, exec = `SELECT $2::text FROM pg_sleep($1::float8)`, `SELECT unnest($1::text::bigint[])`, `SELECT 1 WHERE $1::bigint = 7`
		work := func(seconds float64) {
			t.Helper()
			var text string
			if err := on.QueryRowContext(t.Context(), slow, seconds, "a").Scan(&text); err != nil || text != "a" {
				t.Errorf("%s: %q, %v", name, text, err)
			}
			if all, err := pgdriver.QueryAll(t.Context(), on, func(r *sql.Rows) (n int64, err error) { return n, r.Scan(&n) }, list, "{3,4}"); err != nil || len(all) != 2 {
				t.Errorf("%s: %v, %v", name, all, err)
			}
			if result, err := on.ExecContext(t.Context(), exec, int64(7)); err != nil {
				t.Errorf("%s: %v", name, err)
			} else if n, err := result.RowsAffected(); err != nil || n != 1 {
				t.Errorf("%s: %d rows, %v", name, n, err)
			}
			if _, err := on.ExecContext(t.Context(), `SELECT 1`); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		work(0) // as fast as possible
		p.KeepFrom(time.Time{})
		if !pgdriver.Keeps(on, slow) {
			t.Errorf("%s: a plan is not kept at first", name)
		}
		work(0.5)
		if pgdriver.Keeps(on, slow) == c.replans {
			t.Errorf("%s: after a slow execution its plan is kept: %t", name, c.replans)
		}
		p.KeepFrom(time.Now().Add(time.Hour)) // all of them are replanned
		work(0)
		p.KeepFrom(time.Now())
		if !pgdriver.Keeps(on, slow) {
			t.Errorf("%s: a plan is not kept after a while", name)
		}
	}
}

// Replanned statements return the same values as statements with a kept plan, under any
// setting.
func TestReplannedStatementsReturnSameValues(t *testing.T) {
	conn, err := pgtest.Empty(t).OpenMode(t, pgx.QueryExecModeCacheStatement).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(t.Context(), `SET DateStyle = 'German'`); err != nil {
		t.Fatal(err)
	}
	var p pgdriver.Plans
	on := p.On(conn, conn)
	const query = `SELECT $1::timestamptz`
	for _, keep := range []bool{true, false} {
		want, got := time.Date(1999, 8, 7, 6, 5, 4, 3000, time.UTC), time.Time{}
		if err := on.QueryRowContext(t.Context(), query, want).Scan(&got); err != nil || !got.Equal(want) {
			t.Errorf("kept: %t: read %v, %v", keep, got, err)
		}
		p.KeepFrom(time.Now().Add(time.Hour))
		if pgdriver.Keeps(on, query) {
			t.Error("the plan is kept")
		}
	}
}

// A connection with watched plans begins transactions: a TxLog reads in one.
func TestPlansOfAConnection(t *testing.T) {
	conn, err := pgtest.Empty(t).OpenMode(t, pgx.QueryExecModeCacheStatement).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var p pgdriver.Plans
	tx, err := p.Conn(conn).BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(); err != nil {
		t.Error(err)
	}
}

// A statement that is slow for another reason keeps its plan, and so do the others.
func TestSlowForOtherReasonsKeepsPlan(t *testing.T) {
	type sent struct {
		query     string
		ms        int
		replanned bool
		err       error
	}
	failed := errors.New("failed")
	of := func(ms ...int) (all []sent) {
		for _, ms := range ms {
			all = append(all, sent{"SELECT", ms, false, nil})
		}
		return all
	}
	for name, c := range map[string]struct {
		sent    []sent
		replans bool // SELECT, then
	}{
		"a slow network":                           {of(300, 310, 1490, 290, 1440, 1440, 1440), false},
		"five times the fastest":                   {of(300, 290, 1450), true},
		"a busy server":                            {of(slices.Repeat([]int{1, 1, 1, 1, 1, 5}, 1000)...), false},
		"a quarter is slow":                        {of(slices.Repeat([]int{1, 1, 1, 5}, 1000)...), true},
		"a moment":                                 {of(1, 290), false},
		"a moment, again much later":               {of(slices.Concat([]int{1, 290}, slices.Repeat([]int{1}, 300), []int{290})...), false},
		"a moment, again soon":                     {of(1, 290, 1, 1, 290), true},
		"another is slow":                          {[]sent{{"SELECT", 300, false, nil}, {"UPDATE", 10, false, nil}, {"UPDATE", 1000, false, nil}}, false},
		"a failure is fast":                        {append(of(300), sent{"SELECT", 0, false, failed}, sent{"SELECT", 310, false, nil}), false},
		"the first fails":                          {append([]sent{{"SELECT", 0, false, failed}}, of(310)...), false},
		"a failure is slow, as one that timed out": {append(of(300), sent{"SELECT", 3000, false, failed}), true},
		"as slow with a new plan":                  {slices.Concat(of(10), slices.Repeat([]sent{{"SELECT", 1000, true, nil}}, 7), of(1100)), false},
		"once as slow with a new plan":             {append(of(10), sent{"SELECT", 1000, true, nil}, sent{"SELECT", 1100, false, nil}), true},
	} {
		var p pgdriver.Plans
		for _, s := range c.sent {
			p.Took(s.query, time.Duration(s.ms)*time.Millisecond, s.replanned, s.err)
		}
		if p.Replans("SELECT", 0) != c.replans {
			t.Errorf("%s: SELECT is planned again: %t", name, !c.replans)
		}
	}
}

// A plan that was wrong before is replaced at the first slow execution.
func TestWrongPlanIsRemembered(t *testing.T) {
	var p pgdriver.Plans
	p.Took("SELECT", 10*time.Millisecond, false, nil)
	p.Took("SELECT", time.Second, false, nil)
	for range 100 {
		p.Took("SELECT", 10*time.Millisecond, true, nil)
	}
	p.KeepFrom(time.Now())
	if p.Replans("SELECT", 0) {
		t.Error("the plan is not kept again")
	}
	p.Took("SELECT", 50*time.Millisecond, false, nil)
	if !p.Replans("SELECT", 0) {
		t.Error("the plan is kept")
	}
}

// A statement is replanned for ten times what slow executions have lost, and at most 30 seconds.
func TestTimeOfReplans(t *testing.T) {
	for slow, want := range map[time.Duration]time.Duration{
		500 * time.Millisecond: 5 * time.Second, 2 * time.Second: 20 * time.Second, time.Minute: 30 * time.Second,
	} {
		var p pgdriver.Plans
		p.Took("SELECT", time.Microsecond, false, nil)
		p.Took("SELECT", slow, false, nil)
		if !p.Replans("SELECT", want-time.Second) || p.Replans("SELECT", want) {
			t.Errorf("after %v: not for %v", slow, want)
		}
	}
}

// What a wrong plan has lost counts once.
func TestTimeOfRepeatedReplans(t *testing.T) {
	var p pgdriver.Plans
	p.Took("SELECT", time.Microsecond, false, nil)
	p.Took("SELECT", time.Minute, false, nil)
	p.KeepFrom(time.Now())
	p.Took("SELECT", 100*time.Millisecond, false, nil)
	if want := 4 * time.Second; !p.Replans("SELECT", want-time.Second) || p.Replans("SELECT", want) {
		t.Errorf("not for %v", want)
	}
}

// After many statements, new ones are recorded beside those that are known.
func TestPlansAfterManyStatements(t *testing.T) {
	var p pgdriver.Plans
	for i := range pgdriver.MostTexts + 1 {
		p.Took(time.Duration(i).String(), time.Millisecond, false, nil)
	}
	p.Took("SELECT", time.Millisecond, false, nil)
	p.Took("INSERT", time.Millisecond, false, nil)
	p.Took("SELECT", time.Second, false, nil)
	if !p.Replans("SELECT", 0) {
		t.Error("the record of SELECT is dropped")
	}
}

// However many statements a user's log makes, repeated statements are watched.
func TestPlansOfManyStatements(t *testing.T) {
	var p pgdriver.Plans
	for i := range 3 * pgdriver.MostTexts {
		p.Took(strconv.Itoa(i), time.Millisecond, false, nil)
	}
	for _, d := range []time.Duration{time.Millisecond, time.Second} {
		p.Took("SELECT", d, false, nil)
		p.Took(strings.Repeat("x", pgdriver.LongestText+1), d, false, nil)
	}
	if !p.Replans("SELECT", 0) || p.Replans(strings.Repeat("x", pgdriver.LongestText+1), 0) {
		t.Error("a statement after many others is not watched, or one that is too long is")
	}
}
