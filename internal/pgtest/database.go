package pgtest

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq" // OpenPQ

	"github.com/pgfrontier/worker/internal/ident"
)

// Database is a database of one test, dropped in its cleanup.
type Database struct {
	URL string  // the connection string; pgx and lib/pq understand it
	DB  *sql.DB // over pgx/stdlib in its default mode; closed in cleanup
}

// New makes a database with all default tables.
func New(t testing.TB) *Database {
	t.Helper()
	Server(t)
	template, err := main.applied()
	if err != nil {
		t.Fatalf("pgtest: making the template database: %v", err)
	}
	return open(t, template)
}

// Empty makes a database without any tables.
func Empty(t testing.TB) *Database {
	t.Helper()
	Server(t)
	return open(t, "template1")
}

func open(t testing.TB, template string) *Database {
	t.Helper()
	name := main.nextName()
	ctx, cancel := context.WithTimeout(context.Background(), stepLimit)
	defer cancel()
	if err := main.create(ctx, name, template); err != nil {
		t.Fatalf("pgtest: creating a database: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stepLimit)
		defer cancel()
		if err := main.drop(ctx, name); err != nil {
			t.Errorf("pgtest: dropping a database: %v", err)
		}
	})
	d := &Database{URL: main.server.URL(name)}
	d.DB = d.open(t, "pgx", d.URL)
	return d
}

// Exec runs a statement and fails the test if it cannot.
func (d *Database) Exec(t testing.TB, query string, args ...any) {
	t.Helper()
	if _, err := d.DB.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatalf("%v\nin: %s", err, query)
	}
}

// OpenMode opens another pool on the database, over pgx/stdlib in that mode.
func (d *Database) OpenMode(t testing.TB, mode pgx.QueryExecMode) *sql.DB {
	t.Helper()
	cfg, err := pgx.ParseConfig(d.URL)
	if err != nil {
		t.Fatal("pgtest: pgx does not take the connection string")
	}
	cfg.DefaultQueryExecMode = mode
	db := stdlib.OpenDB(*cfg)
	closeInCleanup(t, db)
	return db
}

// OpenPQ opens another pool on the database, over lib/pq.
func (d *Database) OpenPQ(t testing.TB) *sql.DB {
	t.Helper()
	return d.open(t, "postgres", d.URL)
}

func (d *Database) open(t testing.TB, driver, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, url)
	if err != nil {
		t.Fatalf("pgtest: driver %s does not take the connection string", driver)
	}
	closeInCleanup(t, db)
	return db
}

func closeInCleanup(t testing.TB, db *sql.DB) {
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("pgtest: closing a pool: %v", err)
		}
	})
}

// uniquePrefix keeps the databases of several processes apart on a server that
// they share.
func uniquePrefix() string { return "pgtest_" + strings.ToLower(rand.Text()[:10]) + "_" }

func (s *shared) nextName() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made++
	return fmt.Sprintf("%s%d", s.prefix, s.made)
}

// create copies a template file by file, which for a small one is twice as
// fast as the copy through the log that is the default since PostgreSQL 15.
func (s *shared) create(ctx context.Context, name, template string) error {
	strategy := ""
	var version int
	if err := s.admin.QueryRowContext(ctx, `SELECT current_setting('server_version_num')::int`).Scan(&version); err != nil {
		return err
	}
	if version >= 150000 {
		strategy = " STRATEGY file_copy"
	}
	_, err := s.admin.ExecContext(ctx, `CREATE DATABASE `+ident.Quote(name)+` TEMPLATE `+ident.Quote(template)+strategy)
	return err
}

func (s *shared) drop(ctx context.Context, name string) error {
	_, err := s.admin.ExecContext(ctx, `DROP DATABASE IF EXISTS `+ident.Quote(name)+` WITH (FORCE)`)
	return err
}

func joined(errs []error) error { return errors.Join(errs...) }
