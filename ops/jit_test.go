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
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops"
)

// statements finds the statements of a connection for which the server may use JIT.
type statements struct {
	mu       sync.Mutex
	without  map[*pgx.Conn]bool // JIT, until the transaction ends
	compiled []string
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
		s.compiled = append(s.compiled, q.SQL)
	}
	return ctx
}

func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Lists and changes run without JIT: on large tables, compilation takes longer than the
// statement.
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
	d.Exec(t, `INSERT INTO jobs (kind, queue) VALUES ('k', 'q')`)
	s := &statements{without: map[*pgx.Conn]bool{}}
	cfg.Tracer = s
	db := stdlib.OpenDB(*cfg)
	t.Cleanup(func() { _ = db.Close() })
	jobs, err := ops.NewJobs(db)
	if err != nil {
		t.Fatal(err)
	}
	o := operator(t, db)
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
		"stopped":    func(ctx context.Context) error { _, err := o.StoppedWorkers(ctx); return err },
	} {
		s.compiled = nil
		if err := call(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, text := range s.compiled {
			t.Errorf("%s: the server may compile %s", name, text)
		}
	}
}
