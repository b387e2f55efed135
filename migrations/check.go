package migrations

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrNotApplied reports that tables of the worker are missing or older than
	// this program. Call Apply, or run the SQL that cmd/migrate-gen writes.
	ErrNotApplied = errors.New("migrations: the worker's tables are missing or out of date")

	// ErrNewerVersion reports that a newer version of this library has upgraded
	// the tables. Deploy that version.
	ErrNewerVersion = errors.New("migrations: the worker's tables belong to a newer version")
)

// Querier is what Check needs; *sql.DB, *sql.Conn and *sql.Tx have it.
type Querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Check reports whether the worker's tables exist and have this program's
// version: ErrNotApplied or ErrNewerVersion if not. Any other error means that
// they could not be looked at: the server cannot be reached, or denies access.
func Check(ctx context.Context, q Querier, c *Config) error {
	s, err := newSchema(c)
	if err != nil {
		return err
	}
	missing, version, err := s.look(ctx, q, s.worker)
	switch {
	case err != nil:
		return err
	case version > Version:
		return newer(version)
	case len(missing) > 0:
		return fmt.Errorf("%w: no table %s: %s", ErrNotApplied, strings.Join(missing, ", "), remedy)
	case version < Version:
		return fmt.Errorf("%w: the database has version %d, this program needs %d: %s", ErrNotApplied, version, Version, remedy)
	}
	return nil
}

const remedy = "call migrations.Apply with these table names, or run the SQL that cmd/migrate-gen writes for them"

func newer(version int) error {
	return fmt.Errorf("%w: the database has version %d, this program knows %d: update the program", ErrNewerVersion, version, Version)
}

// look returns which of the tables are missing, and the version, 0 if there is
// none.
func (s schema) look(ctx context.Context, q Querier, tables []table) (missing []string, version int, err error) {
	if missing, err = filter(ctx, q, noTable, sqlNames(tables)); err != nil {
		return nil, 0, err
	}
	for _, name := range missing {
		if name == s.Version.SQL() {
			return missing, 0, nil
		}
	}
	versions, err := column[int](ctx, q, "SELECT version FROM "+s.Version.SQL())
	if err == nil && len(versions) > 0 {
		version = versions[0]
	}
	return missing, version, err
}

// Each takes a JSON array of names and returns some of them, in the same order:
// those without a table, without an index, without a schema, and those without
// a schema in their name whose table is not where a new one would be created.
const (
	namesOf   = `SELECT x.name FROM json_array_elements_text($1::text::json) WITH ORDINALITY AS x(name, n) WHERE `
	noTable   = namesOf + `NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = to_regclass(x.name) AND c.relkind IN ('r', 'p')) ORDER BY n`
	noIndex   = namesOf + `NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = to_regclass(x.name) AND c.relkind IN ('i', 'I')) ORDER BY n`
	noSchema  = namesOf + `NOT EXISTS (SELECT FROM pg_namespace s WHERE s.nspname = x.name) ORDER BY n`
	elsewhere = namesOf + `strpos(x.name, '.') = 0 AND EXISTS (SELECT FROM pg_class c JOIN pg_namespace s ON s.oid = c.relnamespace
 WHERE c.oid = to_regclass(x.name) AND s.nspname <> current_schema()) ORDER BY n`
)

func filter(ctx context.Context, q Querier, query string, names []string) ([]string, error) {
	if len(names) == 0 {
		return nil, nil
	}
	list, err := json.Marshal(names)
	if err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	return column[string](ctx, q, query, string(list))
}

func column[T any](ctx context.Context, q Querier, query string, args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("migrations: cannot look at the tables: %w", err)
	}
	defer rows.Close()
	var all []T
	for rows.Next() {
		var v T
		if err := rows.Scan(&v); err != nil {
			return nil, fmt.Errorf("migrations: cannot look at the tables: %w", err)
		}
		all = append(all, v)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("migrations: cannot look at the tables: %w", err)
	}
	return all, nil
}

func sqlNames(tables []table) []string {
	all := make([]string, len(tables))
	for i, t := range tables {
		all[i] = t.SQL()
	}
	return all
}
