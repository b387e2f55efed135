package pgtest

import (
	"database/sql"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Plan is a node of an executed plan, as EXPLAIN (ANALYZE, FORMAT JSON) shows
// it.
type Plan struct {
	Type    string  `json:"Node Type"`
	Index   string  `json:"Index Name"`
	Rows    float64 `json:"Actual Rows"` // each time it was executed
	Loops   float64 `json:"Actual Loops"`
	Removed float64 `json:"Rows Removed by Filter"`
	Cost    float64 `json:"Total Cost"` // as the planner estimates it
	Plans   []Plan
}

// Walk calls f with the node and all below it.
func (p Plan) Walk(f func(Plan)) {
	f(p)
	for _, child := range p.Plans {
		child.Walk(f)
	}
}

// Visited counts the rows that scans of tables and indexes have read.
func (p Plan) Visited() (rows float64) {
	p.Walk(func(p Plan) {
		if strings.HasPrefix(p.Type, "Index") || p.Type == "Seq Scan" || p.Type == "Bitmap Heap Scan" {
			rows += (p.Rows + p.Removed) * p.Loops
		}
	})
	return rows
}

// Explain executes a statement, prepared as drivers do and planned in a
// plan_cache_mode, and returns what was done, also as text.
func Explain(t testing.TB, conn *sql.Conn, planCacheMode, statement, args string) (root Plan, text string) {
	t.Helper()
	for _, s := range []string{`SET plan_cache_mode = ` + planCacheMode, `PREPARE p AS ` + statement} {
		if _, err := conn.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%v\nin: %s", err, s)
		}
	}
	if err := conn.QueryRowContext(t.Context(), `EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE p `+args).Scan(&text); err != nil {
		t.Fatalf("%v\nin: %s", err, statement)
	}
	if _, err := conn.ExecContext(t.Context(), `DEALLOCATE p`); err != nil {
		t.Fatal(err)
	}
	var plans []struct{ Plan Plan }
	if err := json.Unmarshal([]byte(text), &plans); err != nil {
		t.Fatal(err)
	}
	return plans[0].Plan, text
}

// Cost is what a plan costs as a whole, as the planner sees it.
func Cost(t testing.TB, plan string) float64 {
	t.Helper()
	found := wholeCost.FindStringSubmatch(plan)
	if found == nil {
		t.Fatalf("no cost in the plan\n%s", plan)
	}
	cost, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return cost
}

var wholeCost = regexp.MustCompile(`cost=[0-9.]+\.\.([0-9.]+) `)

// ExplainGeneric returns the plan that a statement gets for all values of its parameters,
// as text. It does not execute the statement.
func ExplainGeneric(t testing.TB, conn *sql.Conn, types, statement, args string) (text string) {
	t.Helper()
	if types != "" {
		types, args = "("+types+")", "("+args+")"
	}
	for _, s := range []string{`SET plan_cache_mode = force_generic_plan`, `PREPARE p ` + types + ` AS ` + statement} {
		if _, err := conn.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%v\nin: %s", err, s)
		}
	}
	rows, err := conn.QueryContext(t.Context(), `EXPLAIN EXECUTE p `+args)
	if err != nil {
		t.Fatalf("%v\nin: %s", err, statement)
	}
	defer rows.Close()
	var lines []string
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.ExecContext(t.Context(), `DEALLOCATE p`); err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}
