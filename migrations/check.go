package migrations

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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

// Check reports whether the worker's tables exist, with every column, and have
// this program's version: ErrNotApplied, which names all that is missing, or
// ErrNewerVersion if not. Any other error means that they could not be looked
// at: the server cannot be reached, or denies access.
func Check(ctx context.Context, q Querier, c *Config) error {
	s, err := newSchema(c)
	if err != nil {
		return err
	}
	faults, version, err := s.look(ctx, q)
	switch {
	case err != nil:
		return err
	case version > Version:
		return newer(version)
	case len(faults) > 0:
		return fmt.Errorf("%w: %s: %s", ErrNotApplied, strings.Join(faults, "; "), remedy)
	case version < Version:
		return fmt.Errorf("%w: the database has version %d, this program needs %d: %s", ErrNotApplied, version, Version, remedy)
	}
	return nil
}

const remedy = "call migrations.Apply with these table names, or run the SQL that cmd/migrate-gen writes for them"

func newer(version int) error {
	return fmt.Errorf("%w: the database has version %d, this program knows %d: update the program", ErrNewerVersion, version, Version)
}

// look returns what is missing of the worker's tables and of more, and the
// version, 0 if there is none. Of the other tables it wants no more than the
// columns: programs may add events in ways of their own.
func (s schema) look(ctx context.Context, q Querier, more ...table) (faults []string, version int, err error) {
	missing, err := filter(ctx, q, noTable, sqlNames(slices.Concat(s.worker, more)))
	if err != nil {
		return nil, 0, err
	}
	if len(missing) > 0 {
		faults = append(faults, "no table "+strings.Join(missing, ", "))
	}
	wrong, err := filter(ctx, q, faulty, append(shapes(s.worker, true), shapes(more, false)...))
	if err != nil {
		return nil, 0, err
	}
	faults = append(faults, wrong...)
	if slices.Contains(missing, s.Version.SQL()) {
		return faults, 0, nil
	}
	versions, err := column[int](ctx, q, "SELECT version FROM "+s.Version.SQL())
	if err == nil && len(versions) > 0 {
		version = versions[0]
	}
	return faults, version, err
}

// Each takes a JSON array of names and returns some of them, in the same order:
// those without a table, those that something else has, those without a schema,
// and those without a schema in their name whose table is not where a new one
// would be created.
const (
	namesOf   = `SELECT x.name FROM json_array_elements_text($1::text::json) WITH ORDINALITY AS x(name, n) WHERE `
	noTable   = namesOf + `NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = to_regclass(x.name) AND c.relkind IN ('r', 'p')) ORDER BY n`
	taken     = namesOf + `EXISTS (SELECT FROM pg_class c WHERE c.oid = to_regclass(x.name) AND c.relkind NOT IN ('r', 'p')) ORDER BY n`
	noSchema  = namesOf + `NOT EXISTS (SELECT FROM pg_namespace s WHERE s.nspname = x.name) ORDER BY n`
	elsewhere = namesOf + `strpos(x.name, '.') = 0 AND EXISTS (SELECT FROM pg_class c JOIN pg_namespace s ON s.oid = c.relnamespace
 WHERE c.oid = to_regclass(x.name) AND s.nspname <> current_schema()) ORDER BY n`
)

// filter passes a list to a query as JSON.
func filter[T any](ctx context.Context, q Querier, query string, all []T) ([]string, error) {
	if len(all) == 0 {
		return nil, nil
	}
	list, err := json.Marshal(all)
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
