package workertest_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/workertest"
)

// Tests that begin at once share one template, and each has its own copy.
func TestDatabase(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t)
	open := func(name string) (*sql.DB, error) { return sql.Open("pgx", server.URL(name)) }
	template := "workertest_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	t.Cleanup(func() {
		if admin, err := open("postgres"); err == nil {
			_, _ = admin.Exec(`DROP DATABASE IF EXISTS ` + template)
			_ = admin.Close()
		}
	})
	var setups atomic.Int64
	setup := func(ctx context.Context, db *sql.DB) error {
		if setups.Add(1) == 1 {
			return errBoom
		}
		return migrations.Apply(ctx, db, nil)
	}
	if _, _, err := workertest.Database(t.Context(), template, open, setup); !errors.Is(err, errBoom) {
		t.Fatalf("the first setup: %v", err)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			db, drop, err := workertest.Database(t.Context(), template, open, setup)
			if err != nil {
				t.Error(err)
				return
			}
			appendEvents(t, db, event("Order", "a"))
			if head, err := newStore().GetLatestGlobalPosition(t.Context(), db); err != nil || head != 1 {
				t.Errorf("head %d, want 1: %v", head, err)
			}
			if err := drop(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := setups.Load(); n != 2 {
		t.Errorf("%d setups, want 2", n)
	}
	admin, err := open("postgres")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close() }()
	var left string
	if err := admin.QueryRowContext(t.Context(), `SELECT coalesce(string_agg(datname, ' '), '') FROM pg_database WHERE datname LIKE $1::text || '%'`, template).Scan(&left); err != nil || left != template {
		t.Errorf("databases %q, want %q: %v", left, template, err)
	}
}

func TestDatabaseRefusesArguments(t *testing.T) {
	t.Parallel()
	open := func(string) (*sql.DB, error) { return nil, errBoom }
	setup := func(context.Context, *sql.DB) error { return nil }
	for says, template := range map[string]string{"template is empty": "", "60 bytes, allowed are 50": strings.Repeat("a", 60), "boom": "app"} {
		if _, _, err := workertest.Database(t.Context(), template, open, setup); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
	}
}
