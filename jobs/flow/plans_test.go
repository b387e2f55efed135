package flow

import (
	"regexp"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// wholeTable matches a plan that reads all of a growing table.
var wholeTable = regexp.MustCompile(`Seq Scan on jobs(_history|_flow_steps|_flow_runs|_flows)?( |$)`)

// No statement reads a whole table, also if it was planned while the table was empty. No statement
// scans a list for each row.
func TestPlans(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	b.d.Exec(t, `ANALYZE jobs, jobs_history, jobs_flow_steps, jobs_flow_runs`)
	d := side()
	for range 300 {
		b.begin(t, d)
	}
	b.d.Exec(t, `INSERT INTO jobs_flow_runs (flow, version, unfinished) SELECT 'f' || i, 'v', 1 FROM generate_series(1, 20000) AS i`)
	b.d.Exec(t, `INSERT INTO jobs (kind) SELECT 'k' FROM generate_series(1, 20000)`)
	b.d.Exec(t, `
INSERT INTO jobs_history (id, kind, queue, priority, run_at, args, created_at, attempt, failures, resets, max_resets, state)
SELECT id + 1000000, kind, queue, priority, run_at, args, created_at, 1, 0, 0, 5, 'completed' FROM jobs`)
	conn := must(b.d.DB.Conn(t.Context()))(t)
	defer conn.Close()
	for name, p := range map[string]struct{ types, statement, args string }{
		"start":       {"text, text, text, text, text", b.sql.start, `'[]', 'f', 'v', '{}', 'k'`},
		"owner":       {"text, text", b.sql.owner, `'f', 'k'`},
		"advance":     {"text", b.sql.advance, `'[1073741824]'`},
		"spread":      {"text", b.sql.spread, `'[1073741824]'`},
		"sweep":       {"bigint", b.sql.sweep, `7`},
		"lock":        {"bigint", b.sql.lock, `1`},
		"cancel":      {"bigint", b.sql.cancel, `1`},
		"stop":        {"bigint", b.sql.stop, `1`},
		"enqueued":    {"bigint", b.sql.enqueued, `1`},
		"hold":        {"text", b.sql.hold, `'[1]'`},
		"edges":       {"bigint", b.sql.edges, `1`},
		"revive":      {"bigint, text, int", b.sql.revive, `1, '[]', 0`},
		"forget":      {"text", b.sql.forget, `'[1]'`},
		"find":        {"bigint", b.sql.find, `1`},
		"steps":       {"bigint", b.sql.steps, `1`},
		"items":       {"bigint, bigint", b.sql.items, `1, 10`},
		"counts":      {"bigint", b.sql.counts, `1`},
		"list":        {"bigint, bigint", b.sql.list + ` ORDER BY r.id DESC LIMIT $2`, `9, 10`},
		"listOf":      {"bigint, bigint, text", b.sql.list + ` AND r.flow = $3 ORDER BY r.id DESC LIMIT $2`, `9, 10, 'side'`},
		"await":       {"bigint", b.sql.await, `1`},
		"output":      {"bigint, text, bigint", b.sql.output, `1, 'join', 1`},
		"outputs":     {"bigint", b.sql.outputs, `1`},
		"names":       {"bigint", b.sql.names, `1`},
		"grow":        {"text", b.sql.grow, `'[1073741824]'`},
		"grown":       {"bigint", b.sql.grown, `1073741824`},
		"begin":       {"text", b.sql.begin, `'[1073741825]'`},
		"shrink":      {"bigint", b.sql.shrink, `1`},
		"old":         {"bigint, text", strings.ReplaceAll(b.sql.old, "{limit}", "100"), `1, '[7]'`},
		"forgetSteps": {"text", b.sql.forgetSteps, `'[1]'`},
		"forgetRuns":  {"text", b.sql.forgetRuns, `'[1]'`},
	} {
		plan := pgtest.ExplainGeneric(t, conn, p.types, p.statement, p.args)
		if cost := pgtest.Cost(t, plan); cost > 100_000 { // jit_above_cost
			t.Errorf("%s costs %g, and the server would compile it:\n%s", name, cost, plan)
		}
		if wholeTable.MatchString(plan) || (name == "advance" || name == "spread") && strings.Contains(plan, "Index Cond: ((id = g.id) AND (id = ANY") {
			t.Errorf("%s:\n%s", name, plan)
		}
	}
}
