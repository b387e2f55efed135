package flow

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/pgtest"
)

// side are eight steps side by side, and one that joins them.
func side(opts ...StepOption) *definition {
	d := &definition{name: "side"}
	var all []dependency
	for i := range 8 {
		d.add(fmt.Sprint("step ", i), "k", -1, nil)
		all = append(all, dependency{n: i, on: onSuccess})
	}
	d.add("join", "k", -1, append([]StepOption{func(_ *definition, s *node) { s.after = all }}, opts...))
	d.add("last", "k", -1, []StepOption{func(_ *definition, s *node) { s.after = []dependency{{n: 8, on: onSuccess}} }})
	return d
}

// Eight finish at once, tell of each end several times, in any order and together with
// ends of other runs. Each join is enqueued once, or skipped, as its kind says.
func TestJoinsUnderConcurrentFinishers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts  []StepOption
		fails func(run int) int // of the eight
		joins func(fails int) bool
	}{
		"all":    {nil, func(run int) int { return run % 2 }, func(fails int) bool { return fails == 0 }},
		"any":    {[]StepOption{Any()}, func(run int) int { return 6 + run%3 }, func(fails int) bool { return fails < 8 }},
		"quorum": {[]StepOption{Quorum(5)}, func(run int) int { return 2 + run%4 }, func(fails int) bool { return fails <= 3 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const runs = 60
			b := newBench(t)
			d := side(c.opts...)
			var ended []int64
			want := map[int64]bool{}
			for i := range runs {
				run := b.begin(t, d)
				fails, outcomes := c.fails(i), map[stepID]outcome{}
				for k, n := range rand.Perm(8) {
					outcomes[idOf(0, n, 0)] = outcome{state: map[bool]string{true: "failed", false: "completed"}[k < fails]}
				}
				for n := range 8 {
					b.end(t, run, outcomes, idOf(run, n, 0))
					ended = append(ended, int64(idOf(run, n, 0)))
				}
				want[run] = c.joins(fails)
			}
			var wg sync.WaitGroup
			errs := make(chan error, 100)
			for range 8 {
				wg.Go(func() {
					for ids := shuffled(ended); len(ids) > 0; {
						n := min(len(ids), 1+rand.IntN(40))
						if err := b.sql.advanceAll(context.Background(), b.d.DB, ids[:n], nil); err != nil {
							errs <- err
							return
						}
						ids = ids[n:]
					}
				})
			}
			wg.Wait()
			close(errs)
			for err := range errs {
				t.Error(err)
			}
			for run, joins := range want {
				var jobs, told int
				var join, last string
				if err := b.d.DB.QueryRow(`
SELECT (SELECT count(*) FROM jobs WHERE (meta->>'flow_run')::bigint = $1), (SELECT state FROM jobs_flow_steps WHERE id = $2), (SELECT state FROM jobs_flow_steps WHERE id = $3),
	(SELECT count(*) FROM jobs_flow_steps WHERE id >> 30 = $1 AND finished_at IS NOT NULL)`, run, int64(idOf(run, 8, 0)), int64(idOf(run, 9, 0))).Scan(&jobs, &join, &last, &told); err != nil {
					t.Fatal(err)
				}
				got := fmt.Sprint(jobs, " ", join, " ", last, " ", told)
				if joins && got != "1 enqueued waiting 8" || !joins && got != "0 skipped skipped 10" {
					t.Errorf("run %d: %s, should join: %t", run, got, joins)
				}
			}
			b.noDeadlocks(t)
		})
	}
}

func (b *bench) noDeadlocks(t testing.TB) {
	t.Helper()
	var n int
	if err := b.d.DB.QueryRow(`SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`).Scan(&n); err != nil || n > 0 {
		t.Errorf("%d deadlocks, %v", n, err)
	}
}

// Who tells of ends locks the runs, in the order of their ids, before anything else: so
// nobody can wait crosswise. While one run is locked, what belongs to later ones is free,
// and so are its own steps.
func TestRunsAreLockedFirstAndInOrder(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	d := side()
	runs := []int64{b.begin(t, d), b.begin(t, d), b.begin(t, d)}
	var ids []int64
	for _, run := range runs {
		b.end(t, run, map[stepID]outcome{idOf(0, 0, 0): {state: "completed"}}, idOf(run, 0, 0))
		ids = append([]int64{int64(idOf(run, 0, 0))}, ids...) // the last first
	}
	held := must(b.d.DB.Begin())(t)
	defer func() { _ = held.Rollback() }()
	must(held.Exec(`SELECT FROM jobs_flow_runs WHERE id = $1 FOR UPDATE`, runs[1]))(t)
	done := make(chan error, 1)
	go func() { done <- b.sql.advanceAll(context.Background(), b.d.DB, ids, nil) }()
	pgtest.AwaitBlocked(t, b.d.DB)
	var locked, free int
	err := b.d.DB.QueryRow(`
WITH runs AS MATERIALIZED (SELECT id FROM jobs_flow_runs WHERE id <> $1 FOR UPDATE SKIP LOCKED), steps AS MATERIALIZED (SELECT id FROM jobs_flow_steps FOR UPDATE SKIP LOCKED)
SELECT (SELECT count(*) FROM runs WHERE id = $2), (SELECT count(*) FROM runs WHERE id = $3) + (SELECT count(*) FROM steps)`, runs[1], runs[0], runs[2]).Scan(&locked, &free)
	if err != nil || locked != 0 || free != 1+30 {
		t.Errorf("the first run is free: %t, and %d of what should be is, %v", locked > 0, free, err)
	}
	if err := held.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	var told int
	if err := b.d.DB.QueryRow(`SELECT count(*) FROM jobs_flow_steps WHERE need = 7`).Scan(&told); err != nil || told != 3 {
		t.Errorf("%d joins were told, %v", told, err)
	}
}

// Eight who find a list complete add its jobs once.
func TestListsAreReadOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	d := &definition{name: "lists"}
	d.add("list", "k", -1, nil)
	d.add("each", "k", 0, []StepOption{func(_ *definition, s *node) { s.after = []dependency{{n: 0, on: onSuccess}} }})
	for range 20 {
		run := b.begin(t, d)
		b.end(t, run, map[stepID]outcome{idOf(0, 0, 0): {"completed", `[{}, {}, {}]`}}, idOf(run, 0, 0))
		moved := must(pgdriver.QueryAll(t.Context(), b.d.DB, scanMoved, b.sql.advance, list([]stepID{idOf(run, 0, 0)})))(t)
		if len(moved) != 1 || moved[0].state != "ready" {
			t.Fatalf("moved is %v", moved)
		}
		var wg sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			wg.Go(func() { errs[i] = b.sql.proceed(context.Background(), b.d.DB, moved, nil) })
		}
		wg.Wait()
		for _, err := range errs {
			if err != nil {
				t.Error(err)
			}
		}
		var unfinished int
		if err := b.d.DB.QueryRow(`SELECT unfinished FROM jobs_flow_runs WHERE id = $1`, run).Scan(&unfinished); err != nil || unfinished != 4 || len(b.enqueuedOf(t, run)) != 3 {
			t.Errorf("%d are unfinished, %d enqueued, %v", unfinished, len(b.enqueuedOf(t, run)), err)
		}
	}
}

// A run whose rows somebody has spoiled holds up no other.
func TestSpoiledRun(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	d := side()
	var ids []int64
	for i := range 9 {
		run := b.begin(t, d)
		b.end(t, run, map[stepID]outcome{idOf(0, 0, 0): {state: "completed"}}, idOf(run, 0, 0))
		ids = append(ids, int64(idOf(run, 0, 0)))
		if i == 4 {
			b.d.Exec(t, `UPDATE jobs_flow_runs SET unfinished = 0 WHERE id = $1`, run)
		}
	}
	err := b.sql.advanceAll(t.Context(), b.d.DB, ids, nil)
	if err == nil || !strings.Contains(err.Error(), "1 steps, the first is of run 5") {
		t.Errorf("it is told as %v", err)
	}
	var told int
	if err := b.d.DB.QueryRow(`SELECT count(*) FROM jobs_flow_steps WHERE need = 7`).Scan(&told); err != nil || told != 8 {
		t.Errorf("%d joins were told, %v", told, err)
	}
}
