package progress_test

import (
	"database/sql"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/delivered"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/progress/progresstest"
	"github.com/pgfrontier/worker/store"
)

// rows returns the rows of a query as text, sorted.
func rows(t *testing.T, db *sql.DB, query string) []string {
	t.Helper()
	var text string
	if err := db.QueryRowContext(t.Context(), `SELECT coalesce(string_agg(r::text, '|' ORDER BY r::text COLLATE "C"), '') FROM (`+query+`) AS r`).Scan(&text); err != nil {
		t.Fatal(err)
	}
	return strings.Split(text, "|")
}

func expectRows(t *testing.T, db *sql.DB, query string, want ...string) {
	t.Helper()
	if got := rows(t, db, query); !slices.Equal(got, want) {
		t.Errorf("%s\nhas\n\t%s\nwant\n\t%s", query, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

const (
	checkpointRows = `SELECT consumer_name, last_position, revision, paused_by, split_at IS NOT NULL AS split, partition_key FROM consumer_checkpoints`
	openRows       = `SELECT consumer_name, gap_position, gap_end, missing, state, first_seen_at = '2020-02-02' AS since FROM consumer_gap_skips`
	deadLetterRows = `SELECT consumer_name, global_position FROM consumer_dead_letters`
	ownerRows      = `SELECT consumer_name, partitions FROM consumer_assignments`
)

// rescalable returns a consumer with open ranges and dead letters, with n wanted partitions.
func rescalable(t *testing.T, n int) progresstest.Guarded {
	t.Helper()
	g := progresstest.New(t)
	g.Exec(t, fmt.Sprintf(`UPDATE consumer_assignments SET partitions = %d`, n))
	g.Exec(t, `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position, first_seen_at)
		SELECT 'c', worker_id, a, b, b - a + 1, s, 10, 10, '2020-02-02' FROM consumer_assignments, (VALUES (2, 3, 'open'), (5, 5, 'open'), (7, 8, 'void')) AS r(a, b, s)`)
	g.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts)
		SELECT 'c', p, 'T', 'a' || p, gen_random_uuid(), 'E', 1 FROM generate_series(1, 4, 3) AS p`)
	return g
}

// rescale runs a split or a merge, and rolls back if do returns false.
func rescale(t *testing.T, g progresstest.Guarded, do func(r *progress.Rescale) bool) {
	t.Helper()
	tx := g.Begin(t)
	r, ok, err := g.Rescale(t.Context(), tx, "c", g.Token)
	if !ok || err != nil {
		t.Fatalf("%v, %v", ok, err)
	}
	if !do(r) {
		_ = tx.Rollback()
		return
	}
	if err := r.Record(t.Context(), "split", progress.Rescaled{From: []string{"c"}, Partitions: 2}); err != nil {
		t.Fatal(err)
	}
}

func TestSplitAndMergeMoveEverything(t *testing.T) {
	t.Parallel()
	g := rescalable(t, 2)
	const scopeRows = `SELECT count(*), scope, scope_since FROM consumer_checkpoints GROUP BY scope, scope_since`
	g.Exec(t, `UPDATE consumer_checkpoints SET scope = '{"types": ["T"]}', scope_since = 4`)
	rescale(t, g, func(r *progress.Rescale) bool {
		position, letters, ok, err := r.LockUnit(t.Context(), "c", 2)
		if position != 10 || !ok || err != nil || len(letters) != 2 {
			t.Fatalf("at %d with letters %v: %v, %v", position, letters, ok, err)
		}
		if err := r.Split(t.Context(), "c", []string{"c#000-7ff", "c#800-fff"}, map[int64]string{1: "c#000-7ff", 4: "c#800-fff"}, "k"); err != nil {
			t.Fatal(err)
		}
		return true
	})
	expectRows(t, g.DB, checkpointRows, `(c#000-7ff,10,1,,f,k)`, `(c#800-fff,10,1,,f,k)`, `(c,10,1,partitions,t,"")`)
	expectRows(t, g.DB, scopeRows, `(3,"{""types"": [""T""]}",4)`)
	expectRows(t, g.DB, openRows, "(c#000-7ff,2,3,2,open,t)", "(c#000-7ff,5,5,1,open,t)", "(c#800-fff,2,3,2,open,t)", "(c#800-fff,5,5,1,open,t)", "(c,7,8,2,void,t)")
	expectRows(t, g.DB, deadLetterRows, "(c#000-7ff,1)", "(c#800-fff,4)")
	expectRows(t, g.DB, ownerRows, "(c#000-7ff,2)", "(c#800-fff,2)", "(c,2)")

	// One unit is split again, and its row is deleted.
	g.Exec(t, `UPDATE consumer_assignments SET partitions = 4`)
	rescale(t, g, func(r *progress.Rescale) bool {
		if _, _, ok, err := r.LockUnit(t.Context(), "c#000-7ff", 4); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if err := r.Split(t.Context(), "c#000-7ff", []string{"c#000-3ff", "c#400-7ff"}, map[int64]string{1: "c#400-7ff"}, "k"); err != nil {
			t.Fatal(err)
		}
		return true
	})
	expectRows(t, g.DB, checkpointRows, `(c#000-3ff,10,2,,f,k)`, `(c#400-7ff,10,2,,f,k)`, `(c#800-fff,10,1,,f,k)`, `(c,10,1,partitions,t,"")`)
	expectRows(t, g.DB, deadLetterRows, "(c#400-7ff,1)", "(c#800-fff,4)")

	// One unit has recorded the end of a doubt, another has a doubt of its own.
	g.Exec(t, `UPDATE consumer_gap_skips SET state = 'void', closed_at = now() WHERE consumer_name = 'c#000-3ff' AND gap_position = 5`)
	g.Exec(t, `UPDATE consumer_gap_skips SET gap_end = 4, missing = 3 WHERE consumer_name = 'c#800-fff' AND gap_position = 2`)
	g.Exec(t, `UPDATE consumer_checkpoints SET last_position = 20, revision = CASE consumer_name WHEN 'c#400-7ff' THEN 9 ELSE 7 END WHERE consumer_name LIKE 'c#%'`)
	g.Exec(t, `UPDATE consumer_assignments SET partitions = 1`)
	low := delivered.Borders{{First: 0, Last: 4095, After: 7, Except: []store.Range{{First: 3, Last: 3}}}}
	high := low.Pass(partition.Range{First: 0x800, Last: 0xfff}, "k", 20, nil)
	g.Exec(t, `UPDATE consumer_checkpoints SET effects = CASE consumer_name WHEN 'c#800-fff' THEN $1::jsonb ELSE $2::jsonb END`, high.String(), low.String())
	units := []string{"c#000-3ff", "c#400-7ff", "c#800-fff"}
	rescale(t, g, func(r *progress.Rescale) bool {
		parts, err := r.LockParts(t.Context(), units, 1)
		if err != nil || len(parts) != 3 {
			t.Fatalf("%v, %v", parts, err)
		}
		for i, p := range parts {
			if !reflect.DeepEqual(p, progress.Part{Unit: units[i], Position: 20, Revision: []int64{7, 9, 7}[i], Mine: true, Scope: `{"types": ["T"]}`, Since: 4, Effects: []delivered.Borders{low, low, high}[i]}) {
				t.Errorf("%+v", p)
			}
		}
		open, some, err := r.Open(t.Context(), units)
		if want := []store.Range{{First: 4, Last: 4}, {First: 5, Last: 5}}; err != nil || !slices.Equal(some, want) {
			t.Errorf("only some units watch %v, want %v: %v", some, want, err)
		}
		if err := r.Merge(t.Context(), parts, "c", open, "k", 1); err != nil {
			t.Fatal(err)
		}
		return true
	})
	expectRows(t, g.DB, checkpointRows, `(c,20,10,,f,"")`)
	expectRows(t, g.DB, scopeRows, `(1,"{""types"": [""T""]}",4)`)
	var had string
	if err := g.DB.QueryRow(`SELECT effects FROM consumer_checkpoints`).Scan(&had); err != nil {
		t.Fatal(err)
	}
	want := delivered.Join([]delivered.Part{{Slots: partition.Range{First: 0, Last: 0x7ff}, Borders: low}, {Slots: partition.Range{First: 0x800, Last: 0xfff}, Borders: high}}, "k")
	if b, err := delivered.Parse(had); err != nil || b.String() != want.String() {
		t.Errorf("the effects are %s, %v; want %v", had, err, want)
	}
	expectRows(t, g.DB, openRows, "(c#000-3ff,5,5,1,void,t)", "(c,2,3,2,open,t)", "(c,4,4,1,open,t)", "(c,5,5,1,open,t)", "(c,7,8,2,void,t)")
	expectRows(t, g.DB, deadLetterRows, "(c,1)", "(c,4)")
	expectRows(t, g.DB, ownerRows+` WHERE consumer_name = 'c'`, "(c,1)")
	expectRows(t, g.DB, `SELECT consumer_name, operation, operator = 'worker `+g.Worker.String()+`' FROM consumer_operations`, "(c,split,t)", "(c,split,t)", "(c,split,t)")
}

// A rescale needs a unit that the worker owns, the wanted number of partitions and the same
// incarnation.
func TestRescaleIsRejected(t *testing.T) {
	t.Parallel()
	g := rescalable(t, 2)
	refused := func(what string, g progresstest.Guarded, unit string, n int) {
		t.Helper()
		rescale(t, g, func(r *progress.Rescale) bool {
			if _, _, ok, err := r.LockUnit(t.Context(), unit, n); ok || err != nil {
				t.Errorf("%s: %v, %v", what, ok, err)
			}
			return false
		})
	}
	refused("another number", g, "c", 3)
	refused("no such unit", g, "c#000-7ff", 2)
	other := g
	other.Checkpoints = g.As(t, uuid.New(), 0)
	refused("another worker", other, "c", 2)
	tx := g.Begin(t)
	if _, ok, err := g.Rescale(t.Context(), tx, "c", "another"); ok || err != nil {
		t.Errorf("another incarnation: %v, %v", ok, err)
	}
	if _, ok, err := g.Rescale(t.Context(), tx, "d", g.Token); ok || err != nil {
		t.Errorf("no such consumer: %v, %v", ok, err)
	}
	_ = tx.Rollback()
	g.Exec(t, `UPDATE consumer_checkpoints SET split_at = now(), paused_at = now()`)
	refused("the row of a split consumer", g, "c", 2)
	units := []string{"c", "c#000-3ff", "c#400-7ff", "c#800-bff", "c#c00-fff"}
	g.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, paused_at) VALUES ('c#000-3ff', now()), ('c#400-7ff', NULL), ('c#800-bff', NULL), ('c#c00-fff', NULL)`)
	g.Exec(t, `INSERT INTO consumer_assignments (consumer_name, worker_id, partitions)
		VALUES ('c#000-3ff', $1::uuid, 1), ('c#400-7ff', gen_random_uuid(), 1), ('c#800-bff', $1::uuid, 2)`, g.Worker.String())
	rescale(t, g, func(r *progress.Rescale) bool {
		parts, err := r.LockParts(t.Context(), units, 1)
		want := []progress.Part{{Unit: "c#000-3ff", Paused: true, Mine: true}, {Unit: "c#400-7ff"}, {Unit: "c#800-bff"}, {Unit: "c#c00-fff"}}
		if err != nil || !reflect.DeepEqual(parts, want) {
			t.Errorf("%+v, %v", parts, err)
		}
		return false
	})
}

// A rescale locks the consumer's own row, for which operations and other rescales wait. The
// server ends a rescale whose session stays idle.
func TestRescaleLocksTheLayout(t *testing.T) {
	t.Parallel()
	g := rescalable(t, 2)
	tx := g.Begin(t)
	if _, err := tx.Exec(`SET LOCAL lock_timeout = 100`); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := g.Rescale(t.Context(), tx, "c", g.Token); !ok || err != nil {
		t.Fatal(ok, err)
	}
	expectRows(t, g.DB, `SELECT consumer_name FROM consumer_checkpoints FOR UPDATE SKIP LOCKED`, "")
	var limit, lock string
	if err := tx.QueryRow(`SELECT current_setting('idle_in_transaction_session_timeout'), current_setting('lock_timeout')`).Scan(&limit, &lock); err != nil || limit != "15s" || lock != "0" {
		t.Errorf("the server's idle timeout is %q, and the lock timeout %q, %v", limit, lock, err)
	}
}

// The guard of a batch that was planned before a split or a merge always fails.
func TestGuardFailsAfterASplitOrMerge(t *testing.T) {
	t.Parallel()
	g := rescalable(t, 2)
	before := g.Loaded(t)
	rescale(t, g, func(r *progress.Rescale) bool {
		_, _, ok, err := r.LockUnit(t.Context(), "c", 2)
		if ok && err == nil {
			err = r.Split(t.Context(), "c", []string{"c#000-7ff", "c#800-fff"}, map[int64]string{1: "c#000-7ff", 4: "c#000-7ff"}, "")
		}
		if err != nil {
			t.Fatal(err)
		}
		return true
	})
	guard := func(from *progress.State) bool {
		tx := g.Begin(t)
		defer func() { _ = tx.Rollback() }()
		_, ok, err := g.Guard(t.Context(), tx, "c", from, progress.Advance{To: 12, Token: g.Token})
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if guard(before) {
		t.Error("a batch of the consumer runs beside its units")
	}
	g.Exec(t, `UPDATE consumer_assignments SET partitions = 1`)
	rescale(t, g, func(r *progress.Rescale) bool {
		units := []string{"c#000-7ff", "c#800-fff"}
		parts, err := r.LockParts(t.Context(), units, 1)
		if err != nil {
			t.Fatal(err)
		}
		open, _, err := r.Open(t.Context(), units)
		if err == nil {
			err = r.Merge(t.Context(), parts, "c", open, "", 1)
		}
		if err != nil {
			t.Fatal(err)
		}
		return true
	})
	if guard(before) {
		t.Error("a batch from before the split runs after the merge")
	}
	if after := g.Loaded(t); !guard(after) || len(after.Open) != 2 || after.DeadLetters != 2 || after.Paused != nil {
		t.Errorf("the merged unit is %+v", after)
	}
}

// A rescale reads the audit and the dead letters by an index, whatever the planner's
// statistics are. The other tables have one row per consumer.
func TestRescaleUsesIndexes(t *testing.T) {
	t.Parallel()
	g := progresstest.New(t)
	g.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name) SELECT 'x' || i FROM generate_series(1, 2000) AS i`)
	g.Exec(t, `INSERT INTO consumer_assignments (consumer_name, worker_id) SELECT 'x' || i, gen_random_uuid() FROM generate_series(1, 2000) AS i`)
	g.Exec(t, `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position)
		SELECT 'x' || i % 100, gen_random_uuid(), i, i, 1, 'open', i, i FROM generate_series(1, 10000) AS i`)
	g.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts)
		SELECT 'x' || i % 100, i, 'T', 'a', gen_random_uuid(), 'E', 1 FROM generate_series(1, 10000) AS i`)
	conn, err := g.DB.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	names, worker := `'["c#000-7ff", "c#800-fff"]'`, `'`+g.Worker.String()+`'`
	for name, args := range map[string]string{
		"own": `'c', '1'`, "unit": `'c', ` + worker + `, 2`, "letters": `'c'`, "split": `'c', ` + names + `, '[{"position": 1, "unit": "c#000-7ff"}]', ''`,
		"inert": `'c'`, "remove": `'c#000-7ff'`, "parts": names + `, ` + worker + `, 2`, "open": names,
		"merge": names + `, 'c', 10, 7, '', '[{"first": 1, "last": 2, "seen": 1}]', ` + worker + `, 1, '[]', '', 0`,
	} {
		plan := pgtest.ExplainGeneric(t, conn, "", g.RescaleStatement(name), "("+args+")")
		if strings.Contains(plan, "Seq Scan on consumer_gap_skips") || strings.Contains(plan, "Seq Scan on consumer_dead_letters") {
			t.Errorf("%s:\n%s", name, plan)
		}
	}
}
