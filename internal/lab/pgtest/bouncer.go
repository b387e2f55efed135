package pgtest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/lab/embedded"
	"github.com/pgfrontier/worker/internal/lab/testdeps"
)

// Bounced is the same database through a PgBouncer in transaction pooling mode,
// which ends in cleanup. The settings are PgBouncer's, as in
// embedded.StartBouncer. Its DB is over pgx in the mode "exec", which works
// there. On a machine without PgBouncer it skips the test.
func (d *Database) Bounced(t testing.TB, settings map[string]string) *Database {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	cfg, err := pgx.ParseConfig(d.URL)
	if err != nil {
		t.Fatal("pgtest: pgx does not understand the connection string")
	}
	b, err := embedded.StartBouncer(ctx, d.URL, settings)
	testdeps.Skip(t, err)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		if err := b.Stop(); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	bounced := &Database{URL: b.URL(cfg.Database)}
	bounced.DB = bounced.OpenMode(t, pgx.QueryExecModeExec)
	return bounced
}
