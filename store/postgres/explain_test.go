package postgres

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
)

// On a large table, every read visits only the rows that it returns or counts, and drops none.
// This holds for all states of the planner's statistics, custom and generic plans, and rare,
// frequent and unknown types.
func TestReadsVisitOnlyNeededRows(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.Exec(t, `ALTER TABLE events SET UNLOGGED, SET (autovacuum_enabled = off)`)
	d.Exec(t, `INSERT INTO events (global_position, aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)
		SELECT i, CASE WHEN i % 100 = 7 THEN 'rare' WHEN i % 2 = 0 THEN 'hot' ELSE 'other' END,
		       (i / 10)::text, i % 10 + 1, gen_random_uuid(), 'Happened', convert_to(repeat('x', 200), 'UTF8')
		  FROM generate_series(1, 100000) AS i WHERE i % 1000 <> 500`)
	conn, err := d.DB.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	plain := NewStore(DefaultStoreConfig())
	s := plain.sql
	type read struct {
		name, text, args string
		rows             float64 // at most, in scans
		complete         bool    // no position is missing
		filters          bool    // what it visits and drops counts as well
	}
	reads := []read{
		{"events from the beginning", s.read, `(0, 100)`, 100, false, false},
		{"events from the middle", s.read, `(50000, 1000)`, 1000, false, false},
		{"events at the head", s.read, `(99990, 10000)`, 10, false, false},
		{"events by bytes, none withheld", s.readSized.light, `(50000, 1000, 1000000)`, 1000, false, false},
		{"events by bytes, added up", s.readSized.exact, `(50000, 1000, 1000000)`, 1000, false, false},
		{"latest", s.latest, ``, 1, false, false},
		{"stream", s.stream, `('hot', '700', 1, 9223372036854775807)`, 5, false, false},
		{"one type, rare", s.scopedOne.plain, `(1000, 100000, 'rare', 100)`, 100, false, false},
		{"one type, frequent", s.scopedOne.plain, `(1000, 100000, 'hot', 100)`, 100, false, false},
		{"one type, a large page", s.scopedOne.plain, `(1000, 100000, 'hot', 1000)`, 1000, false, false},
		{"one type, no such", s.scopedOne.plain, `(0, 100000, 'none', 100)`, 0, false, false},
		{"one type by bytes, none withheld", s.scopedOne.sized.light, `(1000, 100000, 'hot', 100, 1000000)`, 100, false, false},
		{"one type by bytes, added up", s.scopedOne.sized.exact, `(1000, 100000, 'hot', 100, 1000000)`, 100, false, false},
		{"one type, at the head", s.scopedOne.plain, `(99990, 100000, 'hot', 100)`, 5, false, false},
		{"scoped, rare", s.scoped.plain, `(1000, 100000, '{rare}', 100)`, 2 * 100, false, false},
		{"scoped, frequent", s.scoped.plain, `(1000, 100000, '{hot}', 100)`, 2 * 100, false, false},
		{"scoped, two types", s.scoped.plain, `(1000, 100000, '{hot,rare}', 1000)`, 1000 + 990 + 1000, false, false},
		{"scoped, no such type", s.scoped.plain, `(0, 100000, '{none}', 100)`, 0, false, false},
		{"scoped by bytes, none withheld", s.scoped.sized.light, `(1000, 100000, '{hot}', 100, 1000000)`, 2 * 100, false, false},
		{"scoped by bytes, added up", s.scoped.sized.exact, `(1000, 100000, '{hot}', 100, 1000000)`, 2 * 100, false, false},
		{"scoped, at the head", s.scoped.plain, `(99990, 100000, '{hot}', 100)`, 2 * 5, false, false},
		{"near, the whole page", s.scopedNear.plain, `(1000, 100000, '{hot,other}', 100)`, 102, false, true},
		{"near, a short range", s.scopedNear.plain, `(50000, 50040, '{hot,none}', 100)`, 40, false, true},
		{"near, at the head", s.scopedNear.plain, `(99990, 100000, '{hot,other,rare}', 100)`, 10, false, true},
		{"near by bytes, none withheld", s.scopedNear.sized.light, `(1000, 1100, '{hot}', 100, 1000000)`, 100, false, true},
		{"near by bytes, added up", s.scopedNear.sized.exact, `(1000, 1100, '{hot}', 100, 1000000)`, 100, false, true},
		{"missing, some", s.missing, `(1000, 11000)`, 3 * 10_000, false, false},
		{"missing, none", s.missing, `(501, 1499)`, 998, true, false},
		{"two ranges far apart", s.ranges, `('[{"First": 10, "Last": 12}, {"First": 90000, "Last": 90004}]', 100)`, 8, false, false},
		{"a wide range", s.ranges, `('[{"First": 10, "Last": 90000}]', 100)`, 100, false, false},
		{"ages, of all types and of some", s.ages, `('[{"after": 5, "types": null}, {"after": 99990, "types": null}, {"after": 100000, "types": null}, {"after": 9, "types": ["rare", "hot"]}, {"after": 9, "types": ["none"]}]')`, 5, false, false},
		{"ages of nothing", s.ages, `('[]')`, 0, false, false},
	}
	// The same reads, with the proof of the incarnation.
	proving := newStatements(plain.events, plain.heads, "", `(SELECT 'this'::text WHERE pg_postmaster_start_time() < now())`)
	proves := strings.NewReplacer(s.read, proving.read, s.latest, proving.latest, s.scopedOne.plain, proving.scopedOne.plain,
		s.scoped.plain, proving.scoped.plain, s.scopedNear.plain, proving.scopedNear.plain, s.missing, proving.missing, s.ranges, proving.ranges, s.ages, proving.ages)
	for _, r := range slices.Clone(reads) {
		if text := proves.Replace(r.text); text != r.text {
			args := strings.TrimSuffix(r.args, ")") + `, 'this')`
			if r.args == "" {
				args = `('this')`
			}
			reads = append(reads, read{r.name + ", proven", text, args, r.rows, r.complete, r.filters})
		}
	}
	knowledge := []string{``, `ANALYZE events`, `SET default_statistics_target = 1`}
	knowledge = append(knowledge, slices.Repeat([]string{`ANALYZE events`}, tier.Amount(1, 10))...) // as different as few samples make it
	knowledge = append(knowledge, `RESET default_statistics_target`, `VACUUM (ANALYZE) events`)
	for _, knowledge := range knowledge {
		if _, err := conn.ExecContext(t.Context(), knowledge); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(knowledge, "default_statistics_target") {
			continue // plans change with the next ANALYZE
		}
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			for _, r := range reads {
				root, plan := pgtest.Explain(t, conn, mode, r.text, r.args)
				if complaint := judge(root, r.rows, r.complete, r.filters); complaint != "" {
					t.Errorf("%s, %s, after %q: %s\n%s", r.name, mode, knowledge, complaint, plan)
				}
			}
		}
	}
}

// judge returns a complaint if an executed plan visits more rows than it should.
func judge(root pgtest.Plan, most float64, complete, filters bool) (complaint string) {
	visited := 0.0
	root.Walk(func(n pgtest.Plan) {
		switch {
		case strings.HasPrefix(n.Type, "Index"), n.Type == "Bitmap Heap Scan":
			visited += n.Rows * n.Loops
			if filters {
				visited += n.Removed * n.Loops
			} else if n.Removed > 1 { // one: an early end may read one more row
				complaint = fmt.Sprintf("an %s drops %v rows by a filter", n.Type, n.Removed)
			}
		case n.Type == "Seq Scan":
			complaint = "the whole table is read"
		case n.Type == "WindowAgg" && complete && n.Loops > 0:
			complaint = "holes are searched for, though none is there"
		}
	})
	if visited > most+5 {
		complaint = fmt.Sprintf("%v rows are visited, at most %v are needed", visited, most)
	}
	return complaint
}
