package progress_test

import (
	"errors"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/progress/progresstest"
	"github.com/pgfrontier/worker/store"
)

// For all statistics of the planner, the dead letters that a statement reads do not grow with
// the table. The test varies how the dead letters spread over aggregates. It also varies
// whether all, some or none were to be retried when statistics were collected.
func TestCostOfDeadLettersIsFlat(t *testing.T) {
	t.Parallel()
	d := progresstest.New(t)
	d.Exec(t, `ALTER TABLE consumer_dead_letters SET UNLOGGED, SET (autovacuum_enabled = off)`)
	conn, err := d.DB.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	exec := func(statement string, args ...any) {
		t.Helper()
		if _, err := conn.ExecContext(t.Context(), statement, args...); err != nil {
			t.Fatalf("%v\nin: %s", err, statement)
		}
	}

	c := d.Statements()
	statements := []struct {
		name, text, args string
		rows             float64 // most rows that are read
	}{
		{"load", c.Load, `('c')`, 1 + progress.DeadLettersCounted + 1},
		{"add", c.Add, `('c', '[{"position": 1000001, "type": "T", "id": "hot", "order_type": "T", "order_id": "hot", "event_id": "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "event_type": "E", "attempts": 0},
			{"position": 1000002, "type": "T", "id": "none", "order_type": "T", "order_id": "none", "event_id": "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "event_type": "E", "attempts": 0}]')`, 2},
		{"have", c.Have, `('c', '[{"n": 0, "order_type": "T", "order_id": "hot"}, {"n": 1, "order_type": "T", "order_id": "a77"}, {"n": 2, "order_type": "T", "order_id": "none"}]')`, 3},
		{"next", c.Next, `('c')`, progress.RetriesAtOnce + progress.RetriesAtOnce*progress.RetriesAtOnce},
		{"remove first", c.RemoveFirst, `('c', 777)`, 2},
		{"remove", c.Remove, `('c', 777)`, 1},
		{"keep", c.Keep, `('c', 777, 'refused')`, 2},
	}
	few, many := 10_000, 20_000
	if tier.IsLong() {
		many = 100_000
	}
	for _, n := range []int{few, many} {
		for spread, id := range map[string]string{
			"of one aggregate": `'hot'`, "of an aggregate each": `'a' || i`,
			"most of one aggregate": `CASE WHEN i % 100 = 77 THEN 'a' || i ELSE 'hot' END`,
		} {
			if n > few && spread != "most of one aggregate" {
				continue // the same, but slower
			}
			exec(`TRUNCATE consumer_dead_letters`)
			exec(`INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts, retry_at)
				SELECT 'c', i, 'T', CASE i WHEN 777 THEN 'a777' ELSE `+id+` END, gen_random_uuid(), 'E', 0, now()
				FROM generate_series(1, $1::int) AS i`, n)
			changes := []string{
				``, `ANALYZE consumer_dead_letters`,
				`UPDATE consumer_dead_letters SET retry_at = NULL WHERE aggregate_id = 'hot' OR global_position % 10 > 0`,
				`UPDATE consumer_dead_letters SET retry_at = NULL WHERE retry_at IS NOT NULL`,
				`VACUUM (ANALYZE) consumer_dead_letters`,
				`UPDATE consumer_dead_letters SET retry_at = now()`,
			}
			if n > few {
				changes = changes[1:4:4]
			}
			for _, change := range changes {
				exec(change)
				for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
					for _, s := range statements {
						exec(`BEGIN`)
						root, plan := pgtest.Explain(t, conn, mode, s.text, s.args)
						exec(`ROLLBACK`)
						if visited := root.Visited(); visited > s.rows+5 {
							t.Errorf("%s, %d dead letters %s, %s, after %q: %v rows are read, want at most %v\n%s", s.name, n, spread, mode, change, visited, s.rows, plan)
						}
					}
				}
			}
		}
	}
}

// An answer about dead letters, even an empty one, counts only from the incarnation in which
// the progress was loaded.
func TestDeadLettersOfAnotherIncarnation(t *testing.T) {
	d := progresstest.New(t)
	orders := []progress.Order{{Type: "T", ID: "a"}}
	if _, _, err := d.HaveDeadLetters(t.Context(), d.DB, "c", "another", orders); !errors.Is(err, store.ErrIncarnation) {
		t.Errorf("HaveDeadLetters: %v", err)
	}
	if _, err := d.NextRetries(t.Context(), d.DB, "c", "another"); !errors.Is(err, store.ErrIncarnation) {
		t.Errorf("NextRetries: %v", err)
	}
}
