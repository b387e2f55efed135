package migrations_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/migrations"
)

func TestCheckNamesEveryMissingTable(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	if err := migrations.Check(t.Context(), d.DB, nil); err != nil {
		t.Fatal(err)
	}
	d.Exec(t, `DROP TABLE consumer_gap_skips, consumer_checkpoints_token, events`)
	d.Exec(t, `DROP TABLE worker_nodes; CREATE VIEW worker_nodes AS SELECT 1`)
	err := migrations.Check(t.Context(), d.DB, nil)
	if !errors.Is(err, migrations.ErrNotApplied) {
		t.Fatalf("tables are missing: %v", err)
	}
	want := `no table "worker_nodes", "consumer_gap_skips", "consumer_checkpoints_token": call migrations.Apply`
	if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "cmd/migrate-gen") {
		t.Errorf("%q does not say %s", err, want)
	}
	d.Exec(t, `DROP TABLE consumer_checkpoints_schema`)
	err = migrations.Check(t.Context(), d.DB, nil)
	if !errors.Is(err, migrations.ErrNotApplied) || !strings.Contains(err.Error(), `"consumer_checkpoints_schema"`) {
		t.Errorf("the version is missing, too: %v", err)
	}
}

// Check does not report a table as missing if it cannot read the catalog.
func TestCheckWithoutAServer(t *testing.T) {
	t.Parallel()
	unknown, err := sql.Open("pgx", "postgres://localhost:1/x?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer unknown.Close()
	d := pgtest.New(t)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for what, check := range map[string]func() error{
		"no server":         func() error { return migrations.Check(t.Context(), unknown, nil) },
		"cancelled":         func() error { return migrations.Check(cancelled, d.DB, nil) },
		"Apply, cancelled":  func() error { return migrations.Apply(cancelled, d.DB, nil) },
		"in a broken state": func() error { return migrations.Check(t.Context(), brokenTx(t, d.DB), nil) },
	} {
		err := check()
		if err == nil || errors.Is(err, migrations.ErrNotApplied) || errors.Is(err, migrations.ErrNewerVersion) || !strings.Contains(err.Error(), "cannot read the catalog") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func brokenTx(t *testing.T, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	if _, err := tx.ExecContext(t.Context(), `SELECT 1/0`); err == nil {
		t.Fatal("1/0 has a value")
	}
	return tx
}

func TestInvalidNamesReachNoServer(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	c := migrations.Config{EventsTable: `events"; DROP TABLE events; --`}
	for what, f := range map[string]func() error{
		"Apply": func() error { return migrations.Apply(t.Context(), d.DB, &c) },
		"Check": func() error { return migrations.Check(t.Context(), d.DB, &c) },
	} {
		if err := f(); err == nil || !strings.Contains(err.Error(), "Names.Events") {
			t.Errorf("%s: %v", what, err)
		}
	}
	complete(t, d.DB)
}
