package flow

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/pgdriver"
)

// side is a flow of eight parallel steps and one that joins them.
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

// Eight goroutines report ends at once: each end several times, in any order, and together with
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
			b := newTestbed(t)
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
						if err := b.advance(context.Background(), ids[:n]); err != nil {
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
				var jobs, recorded int
				var join, last string
				if err := b.d.DB.QueryRow(`
SELECT (SELECT count(*) FROM jobs WHERE (meta->>'flow_run')::bigint = $1), (SELECT state FROM jobs_flow_steps WHERE id = $2), (SELECT state FROM jobs_flow_steps WHERE id = $3),
	(SELECT count(*) FROM jobs_flow_steps WHERE id >> 30 = $1 AND finished_at IS NOT NULL)`, run, int64(idOf(run, 8, 0)), int64(idOf(run, 9, 0))).Scan(&jobs, &join, &last, &recorded); err != nil {
					t.Fatal(err)
				}
				got := fmt.Sprint(jobs, " ", join, " ", last, " ", recorded)
				if joins && got != "1 enqueued waiting 8" || !joins && got != "0 skipped skipped 10" {
					t.Errorf("run %d: %s, should join: %t", run, got, joins)
				}
			}
			b.noDeadlocks(t)
		})
	}
}

func (b *testbed) noDeadlocks(t testing.TB) {
	t.Helper()
	var n int
	if err := b.d.DB.QueryRow(`SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`).Scan(&n); err != nil || n > 0 {
		t.Errorf("%d deadlocks, %v", n, err)
	}
}

// Others have locked a run, as an open transaction of Cancel or Retry does. A report of ends passes
// over this run, and reports the ends of all other runs at once.
func TestLockedRunDelaysNoOther(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	d := side()
	runs := []int64{b.begin(t, d), b.begin(t, d), b.begin(t, d)}
	var ids []int64
	for _, run := range runs {
		b.end(t, run, map[stepID]outcome{idOf(0, 0, 0): {state: "completed"}}, idOf(run, 0, 0))
		ids = append([]int64{int64(idOf(run, 0, 0))}, ids...) // the last step first
	}
	recorded := func() string {
		return must(pgdriver.QueryAll(t.Context(), b.d.DB, func(r *sql.Rows) (runs string, err error) { return runs, r.Scan(&runs) },
			`SELECT coalesce(string_agg((id >> 30)::text, ' ' ORDER BY id), '') FROM jobs_flow_steps WHERE need = 7`))(t)[0]
	}
	held := must(b.d.DB.Begin())(t)
	defer func() { _ = held.Rollback() }()
	if _, err := b.Cancel(t.Context(), held, runs[1]); err != nil {
		t.Fatal(err)
	}
	r := b.sql.round(b.d.DB)
	if err := r.advance(t.Context(), ids); err != nil {
		t.Fatal(err)
	}
	if got := recorded(); got != "1 3" {
		t.Errorf("the joins of runs %q were recorded while run 2 is locked", got)
	}
	if want := []movedStep{{int64(idOf(runs[1], 0, 0)), "enqueued"}}; !slices.Equal(r.held, want) {
		t.Errorf("left is %v, want %v", r.held, want)
	}
	b.sweepAll(t) // the sweep is not delayed either
	if err := held.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := b.advance(t.Context(), []int64{r.held[0].id}); err != nil {
		t.Fatal(err)
	}
	if got := recorded(); got != "1 2 3" {
		t.Errorf("the joins of runs %q were recorded", got)
	}
}

// If IDs of jobs repeat, another job may have the ID of a step's job in the history. The end of
// that job is not the end of the step, whether the step's own job is unfinished or gone.
func TestEndOfAnotherJobIsNoStepsEnd(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	run := b.begin(t, side())
	step, other := idOf(run, 0, 0), idOf(run, 1, 0)
	b.d.Exec(t, `
INSERT INTO jobs_history (id, kind, queue, priority, run_at, args, created_at, attempt, failures, resets, max_resets, state)
SELECT job_id, 'other', 'default', 5, now(), '{}', now(), 1, 0, 0, 5, 'completed' FROM jobs_flow_steps WHERE id IN ($1, $2)`, int64(step), int64(other))
	b.d.Exec(t, `UPDATE jobs SET state = 'running', attempt = 1, claim = 1, claimed_by = gen_random_uuid(), claimed_at = now()
WHERE id IN (SELECT job_id FROM jobs_flow_steps WHERE id IN ($1, $2))`, int64(step), int64(other))
	stands := func(of stepID, want string) {
		t.Helper()
		var state, code string
		if err := b.d.DB.QueryRow(`SELECT state, coalesce(code, '') FROM jobs_flow_steps WHERE id = $1`, int64(of)).Scan(&state, &code); err != nil {
			t.Fatal(err)
		}
		if got := state + code; got != want {
			t.Errorf("the step is %s, want %s", got, want)
		}
	}
	b.report(t, []stepID{step})
	b.sweepAll(t)
	stands(step, "enqueued")
	if _, err := b.Cancel(t.Context(), nil, run); err != nil {
		t.Fatal(err)
	}
	stands(other, "enqueued")
	shown := must(b.Get(t.Context(), run))(t)
	if s := shown.Steps[0]; s.State == "completed" {
		t.Errorf("the run shows %+v", s)
	}
	b.d.Exec(t, `DELETE FROM jobs WHERE id = (SELECT job_id FROM jobs_flow_steps WHERE id = $1)`, int64(step))
	b.report(t, []stepID{step})
	stands(step, "failedFORGOTTEN")
	b.d.Exec(t, `DELETE FROM jobs_history WHERE kind = 'other'`)
	b.end(t, run, map[stepID]outcome{idOf(0, 1, 0): {state: "completed"}}, other)
	b.sweepAll(t)
	stands(other, "completed")
}

// Eight goroutines find a list complete, and its jobs are added once.
func TestListsAreReadOnce(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
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
			wg.Go(func() { errs[i] = b.sql.round(b.d.DB).proceed(context.Background(), moved) })
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

// listed starts a run whose list of n numbers is complete, and returns the step to spread.
func (b *testbed) listed(t *testing.T, n int, opts ...StepOption) (run int64, each movedStep) {
	t.Helper()
	d := &definition{name: "lists"}
	d.add("list", "k", -1, nil)
	d.add("each", "k", 0, append(opts, func(_ *definition, s *node) { s.after = []dependency{{n: 0, on: onSuccess}} }))
	run = b.begin(t, d)
	b.end(t, run, map[stepID]outcome{idOf(0, 0, 0): {"completed", "[" + strings.TrimSuffix(strings.Repeat("1,", n), ",") + "]"}}, idOf(run, 0, 0))
	moved := must(pgdriver.QueryAll(t.Context(), b.d.DB, scanMoved, b.sql.advance, list([]stepID{idOf(run, 0, 0)})))(t)
	if len(moved) != 1 || moved[0].state != "ready" {
		t.Fatalf("moved is %v", moved)
	}
	return run, moved[0]
}

// spreads processes steps until none is left, in rounds with time for few statements.
func (b *testbed) spreads(t *testing.T, moved ...movedStep) {
	t.Helper()
	for len(moved) > 0 {
		r := b.sql.round(b.d.DB)
		r.late = time.Time{}
		if err := r.proceed(t.Context(), moved); err != nil {
			t.Fatal(err)
		}
		moved = append(r.more, r.held...)
	}
}

// sweeps sweeps until all jobs of a run's list are enqueued. A sweep leaves long lists to the next
// rounds.
func (b *testbed) sweeps(t *testing.T, run int64, n int) {
	t.Helper()
	for range 20 {
		b.sweepAll(t)
		if len(b.enqueuedOf(t, run)) == n {
			return
		}
	}
	t.Errorf("of run %d %d jobs are enqueued, want %d", run, len(b.enqueuedOf(t, run)), n)
}

// Short statements spread a long list. Each job is added once, also if several goroutines or only
// sweeps do it. The same holds for many lists.
func TestLongListsAreSpreadInPieces(t *testing.T) {
	t.Parallel()
	b, most := newSpreadTestbed(t)
	n := most + 100
	spread := func(run int64, want string) {
		t.Helper()
		var got string
		if err := b.d.DB.QueryRow(`
SELECT (SELECT unfinished FROM jobs_flow_runs WHERE id = $1) || ' ' || count(*) || ' ' || count(DISTINCT s.job_id) || ' ' || count(j.id)
FROM jobs_flow_steps AS s LEFT JOIN jobs AS j ON j.id = s.job_id AND j.args = '1' WHERE s.id >> 30 = $1 AND s.id & 1048575 <> 0`, run).Scan(&got); err != nil || got != want {
			t.Errorf("run %d: unfinished, steps, jobs: %s, want %s, %v", run, got, want, err)
		}
	}
	whole := fmt.Sprint(n+1, " ", n, " ", n, " ", n)
	run, each := b.listed(t, n)
	b.spreads(t, each)
	spread(run, whole)

	run, each = b.listed(t, n)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { b.spreads(t, each) })
	}
	wg.Wait()
	spread(run, whole)

	run, _ = b.listed(t, n)
	b.sweeps(t, run, n)
	spread(run, whole)

	var all []movedStep
	var runs []int64
	for range 12 {
		run, each := b.listed(t, most/8)
		all, runs = append(all, each), append(runs, run)
	}
	b.spreads(t, all...)
	for _, run := range runs {
		spread(run, fmt.Sprint(most/8+1, strings.Repeat(fmt.Sprint(" ", most/8), 3)))
	}
}

// A run is cancelled while its long list is spread, before and after the Map step knows the number
// of steps. The run ends, and a retry spreads the list anew.
func TestCancelWhileALongListIsSpread(t *testing.T) {
	t.Parallel()
	b, most := newSpreadTestbed(t)
	n := most + 100
	for statements := 1; statements < 5; statements++ { // the list is long, two pieces of steps, spread, two pieces of jobs
		run, each := b.listed(t, n)
		moved := []movedStep{each}
		for range statements {
			r := b.sql.round(b.d.DB)
			r.late = time.Time{}
			if err := r.proceed(t.Context(), moved); err != nil {
				t.Fatal(err)
			}
			moved = r.more
		}
		if _, err := b.Cancel(t.Context(), nil, run); err != nil {
			t.Fatalf("after %d rounds: %v", statements, err)
		}
		b.spreads(t, moved...)
		b.sweepAll(t)
		var state string
		var unfinished int
		if err := b.d.DB.QueryRow(`SELECT state, unfinished FROM jobs_flow_runs WHERE id = $1`, run).Scan(&state, &unfinished); err != nil || state != "cancelled" || unfinished != 0 {
			t.Errorf("after %d rounds the run is %s, and %d steps have not ended, %v", statements, state, unfinished, err)
		}
		if err := b.Retry(t.Context(), nil, run, "each"); err != nil {
			t.Fatalf("after %d rounds: %v", statements, err)
		}
		b.sweeps(t, run, n)
		b.d.Exec(t, `TRUNCATE jobs, jobs_flow_steps, jobs_flow_runs`)
	}
}

// A run with damaged rows does not delay other runs.
func TestDamagedRunDelaysNoOther(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
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
	err := b.sql.round(b.d.DB).advance(t.Context(), ids)
	if err == nil || !strings.Contains(err.Error(), "1 steps, the first is of run 5") {
		t.Errorf("it is reported as %v", err)
	}
	var recorded int
	if err := b.d.DB.QueryRow(`SELECT count(*) FROM jobs_flow_steps WHERE need = 7`).Scan(&recorded); err != nil || recorded != 8 {
		t.Errorf("%d joins were recorded, %v", recorded, err)
	}
}

// A worker reports a step again whose run was locked. No sweep finds the step here.
func TestWorkerRetriesStepsOfLockedRuns(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	run := b.begin(t, side())
	b.end(t, run, map[stepID]outcome{idOf(0, 0, 0): {state: "completed"}}, idOf(run, 0, 0))
	a := b.advancer(t)
	a.ended = []int64{int64(idOf(run, 0, 0))}
	held := must(b.d.DB.Begin())(t)
	defer func() { _ = held.Rollback() }()
	if _, err := b.Cancel(t.Context(), held, run); err != nil {
		t.Fatal(err)
	}
	a.report(t.Context())
	if len(a.kept) != 1 {
		t.Fatalf("kept are %v", a.kept)
	}
	if err := held.Rollback(); err != nil {
		t.Fatal(err)
	}
	for len(a.kept) > 0 && t.Context().Err() == nil {
		a.report(t.Context())
	}
	if all := must(pgdriver.QueryAll(t.Context(), b.d.DB, func(r *sql.Rows) (id int64, err error) { return id, r.Scan(&id) },
		`SELECT id FROM jobs_flow_steps WHERE need = 7`))(t); len(all) != 1 {
		t.Error("the join did not get the end of the step")
	}
}
