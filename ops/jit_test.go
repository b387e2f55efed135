package ops_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	jobclient "github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// statements finds the statements of a connection for which the server may use JIT.
type statements struct {
	mu       sync.Mutex
	without  map[*pgx.Conn]bool // JIT, until the transaction ends
	compiled []pgx.TraceQueryStartData
}

func (s *statements) TraceQueryStart(ctx context.Context, conn *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch text := strings.ToLower(strings.TrimSpace(q.SQL)); {
	case strings.HasPrefix(text, "begin"), strings.HasPrefix(text, "rollback"), strings.HasPrefix(text, "commit"):
		s.without[conn] = false
	case text == "set local jit = off":
		s.without[conn] = true
	case !s.without[conn] && strings.Contains(text, "from"):
		s.compiled = append(s.compiled, q)
	}
	return ctx
}

func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Lists and changes run without JIT, or the server plans them so cheap that it compiles nothing: on
// large tables, compilation takes longer than the statement.
func TestStatementsRunWithoutJIT(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	if err := migrations.ApplyJobs(t.Context(), d.DB, nil); err != nil {
		t.Fatal(err)
	}
	cfg, err := pgx.ParseConfig(d.URL)
	if err != nil {
		t.Fatal("pgx does not understand the connection string")
	}
	// Nothing is analyzed.
	d.Exec(t, `INSERT INTO jobs (kind, queue) SELECT 'k', 'q' || i % 1000 FROM generate_series(1, 20000) AS i`)
	d.Exec(t, `INSERT INTO jobs_flow_runs (flow, version, unfinished) SELECT 'f', 'v', 1 FROM generate_series(1, 20000)`)
	s := &statements{without: map[*pgx.Conn]bool{}}
	cfg.Tracer = s
	db := stdlib.OpenDB(*cfg)
	t.Cleanup(func() { _ = db.Close() })
	jobs, err := ops.NewJobs(db)
	if err != nil {
		t.Fatal(err)
	}
	o := operator(t, db)
	site{d, o}.place(t, 0)
	appendOrders(t.Context(), d.DB, storepostgres.NewStore(nil), "1")
	for name, call := range map[string]func(ctx context.Context) error{
		"counts":    func(ctx context.Context) error { _, err := jobclient.NewClient(db).Counts(ctx); return err },
		"queues":    func(ctx context.Context) error { _, err := jobs.Queues(ctx); return err },
		"jobs":      func(ctx context.Context) error { _, err := jobs.List(ctx, ops.JobFilter{}, 10); return err },
		"attempts":  func(ctx context.Context) error { _, err := jobs.Attempts(ctx, 1); return err },
		"schedules": func(ctx context.Context) error { _, err := jobs.Schedules(ctx); return err },
		"changes": func(ctx context.Context) error {
			_, err := jobs.Operations(ctx, ops.OperationFilter{}, 10)
			return err
		},
		"a cap":      func(ctx context.Context) error { return jobs.SetCap(ctx, "q", 3, by) },
		"consumers":  func(ctx context.Context) error { _, err := o.Consumers(ctx); return err },
		"operations": func(ctx context.Context) error { _, err := o.Operations(ctx, ops.OperationFilter{}, 10); return err },
		"workers":    func(ctx context.Context) error { _, err := o.Workers(ctx); return err },
		"a proof":    func(ctx context.Context) error { _, err := o.Prove(ctx, "c", nil); return err },
		"stopped":    func(ctx context.Context) error { _, err := o.StoppedWorkers(ctx); return err },
		"runs":       func(ctx context.Context) error { _, err := jobs.FlowRuns(ctx, flow.Filter{}, 10); return err },
		"a run": func(ctx context.Context) error {
			_, err := jobs.FlowRun(ctx, 1)
			return err
		},
		"unadvanced": func(ctx context.Context) error { _, err := jobs.Unadvanced(ctx); return err },
		"unserved":   func(ctx context.Context) error { _, err := jobs.Unserved(ctx); return err },
		"sequences":  func(ctx context.Context) error { _, err := jobs.Sequences(ctx); return err },
		"log":        func(ctx context.Context) error { _, err := o.Log(ctx); return err },
		"event":      func(ctx context.Context) error { _, err := o.Event(ctx, 1); return err },
		"next":       func(ctx context.Context) error { _, err := o.Next(ctx, "c"); return err },
		"gaps":       func(ctx context.Context) error { _, err := o.Gaps(ctx, "c", ops.GapFilter{}, 10); return err },
		"letters":    func(ctx context.Context) error { _, err := o.DeadLetters(ctx, "c"); return err },
		"some letters": func(ctx context.Context) error {
			_, err := o.FilterDeadLetters(ctx, "c", ops.DeadLetterFilter{}, true, 10)
			return err
		},
		"blockers": func(ctx context.Context) error { _, err := o.Blockers(ctx, true); return err },
		"plan":     func(ctx context.Context) error { _, err := o.Plan(ctx, describe(t, &declared{name: "c"})); return err },
	} {
		s.compiled = nil
		if err := call(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, q := range s.compiled {
			var plan string
			if err := d.DB.QueryRow(`EXPLAIN `+q.SQL, q.Args...).Scan(&plan); err != nil {
				t.Fatalf("%v in EXPLAIN %s", err, q.SQL)
			}
			if cost := pgtest.Cost(t, plan); cost > 10_000 { // a tenth of jit_above_cost
				t.Errorf("%s: the server may compile a statement that costs %g: %s", name, cost, q.SQL)
			}
		}
	}
}
