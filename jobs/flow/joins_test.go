package flow

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
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
