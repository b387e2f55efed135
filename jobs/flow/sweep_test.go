package flow

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/jobflow"
)

// advancer returns the advancer of a worker that has the turn.
func (b *testbed) advancer(t *testing.T) *advancer {
	t.Helper()
	return &advancer{sql: b.sql, wake: make(chan struct{}, 1), w: jobflow.Worker{
		Tables: b.core.Tables, Limit: time.Minute, Wake: func() {},
		On: func(ctx context.Context, f func(conn *sql.Conn) error) error {
			conn, err := b.d.DB.Conn(ctx)
			if err != nil {
				return err
			}
			defer conn.Close()
			return f(conn)
		},
		Failed: func(task string, err error) {
			if err != nil {
				t.Errorf("%s: %v", task, err)
			}
		},
	}}
}

func (b *testbed) state(t *testing.T, step stepID) (state string) {
	t.Helper()
	if err := b.d.DB.QueryRow(`SELECT state FROM jobs_flow_steps WHERE id = $1`, int64(step)).Scan(&state); err != nil {
		t.Fatal(err)
	}
	return state
}

// looksAtAll sweeps until each step was read.
func (a *advancer) looksAtAll(t *testing.T) {
	t.Helper()
	ok := a.sweepFirst(t.Context(), nil)
	for looks := 0; ok && len(a.long) > 0; looks++ {
		ok = a.sweepLong(t.Context(), nil) && looks < mostSpread
	}
	if !ok {
		t.Fatalf("the look has failed, or does not end: %v", a.long)
	}
}

// A sweep reaches each run, however many steps another run has. It reads the further pages of a
// long run little by little.
func TestSweepReachesEachRun(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	const n = 5000
	long, each := b.listed(t, n)
	b.spreads(t, each)
	short, of := b.listed(t, 1)
	b.spreads(t, of)
	lastOfLong, ofShort := stepID(each.id)+n, stepID(of.id)+1
	for run, step := range map[int64]stepID{long: lastOfLong, short: ofShort} {
		b.end(t, run, map[stepID]outcome{step - idOf(run, 0, 0): {state: "completed"}}, step)
	}
	a := b.advancer(t)
	if !a.sweepFirst(t.Context(), nil) {
		t.Fatal("the read of first pages has failed")
	}
	if got := b.state(t, ofShort); got != "completed" {
		t.Errorf("the step of the short run is %s", got)
	}
	if got := b.state(t, lastOfLong); got != "enqueued" || len(a.long) != 1 {
		t.Errorf("after the first pages the last step of the long list is %s; long runs: %v", got, a.long)
	}
	a.looksAtAll(t)
	if got := b.state(t, lastOfLong); got != "completed" {
		t.Errorf("the last step of the long list is %s", got)
	}
}

// A sweep leaves the jobs of a long list to the rounds between sweeps, which other runs share.
func TestSweepLeavesLongListsToRounds(t *testing.T) {
	t.Parallel()
	b, most := newSpreadTestbed(t)
	n := most + 100
	_, each := b.listed(t, n)
	for moved := []movedStep{each}; len(moved) > 0 && moved[0].state != movedGrown; {
		r := b.sql.round(b.d.DB)
		r.late = time.Time{}
		if err := r.proceed(t.Context(), moved); err != nil {
			t.Fatal(err)
		}
		moved = r.more
	}
	jobsOf := func() (n int) {
		if err := b.d.DB.QueryRow(`SELECT count(*) FROM jobs`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before, a := jobsOf(), b.advancer(t)
	for range 3 {
		if a.looksAtAll(t); len(a.kept) != 1 || jobsOf() != before {
			t.Fatalf("after a sweep there are %d jobs, %d before; kept: %v", jobsOf(), before, a.kept)
		}
	}
	a.kept = map[movedStep]kept{{each.id + 5, movedGrown}: {}} // another round has reached this step
	if a.looksAtAll(t); len(a.kept) != 1 {
		t.Errorf("several rounds go on with the list: %v", a.kept)
	}
	for rounds := 0; len(a.kept) > 0; rounds++ {
		if a.report(t.Context()); rounds > n {
			t.Fatalf("the rounds do not end: %v", a.kept)
		}
	}
	if got := jobsOf(); got != n {
		t.Errorf("%d jobs, want %d", got, n)
	}
}
