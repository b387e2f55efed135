package migrations

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

var (
	// ErrNotApplied reports that tables are missing or older than this program. Call Apply, or
	// ApplyJobs for the tables of jobs, or execute the SQL of cmd/migrate-gen.
	ErrNotApplied = errors.New("migrations: the tables are missing or out of date")

	// ErrNewerVersion reports that a newer version of this library has upgraded the tables.
	// This program may not run beside them. Deploy the newer version.
	ErrNewerVersion = errors.New("migrations: the tables belong to a newer version")
)

// Check returns nil if this program may use the worker's tables: all exist, with all columns. It
// returns [ErrNotApplied] with the list of missing tables, columns and indexes. It returns
// [ErrNewerVersion] if this program may not run beside tables that a newer version has upgraded.
// Any other error means that Check could not read the catalog: the server cannot be reached, or
// denies access.
func Check(ctx context.Context, q store.Querier, c *Config) error {
	return errtext.Of(check(ctx, q, c))
}

func check(ctx context.Context, q store.Querier, c *Config) error {
	s, err := newSchema(c)
	if err != nil {
		return err
	}
	return s.check(ctx, q)
}

func (s schema) check(ctx context.Context, q store.Querier) error {
	faults, v, err := s.inspect(ctx, q)
	switch {
	case err != nil:
		return err
	case v.oldest > s.version:
		return s.newer(v)
	case len(faults) > 0:
		return fmt.Errorf("%w: %s: %s", ErrNotApplied, strings.Join(faults, "; "), s.remedy)
	case v.applied < s.version:
		return fmt.Errorf("%w: the database has version %d, this program needs %d: %s", ErrNotApplied, v.applied, s.version, s.remedy)
	}
	return nil
}

func (s schema) newer(v versions) error {
	return fmt.Errorf("%w: the database has version %d, which needs programs of version %d or later, and this program has version %d: update the program", ErrNewerVersion, v.applied, v.oldest, s.version)
}

// versions are the versions recorded in the database, 0 if none is recorded.
type versions struct {
	oldest  int // version of the oldest programs that may run
	applied int // of the tables
}

// inspect returns the versions, and the faults of the own tables and of the tables more. It checks
// only the columns of more, since programs may append events in other ways.
func (s schema) inspect(ctx context.Context, q store.Querier, more ...table) (faults []string, v versions, err error) {
	missing, err := filter(ctx, q, noTable, sqlNames(slices.Concat(s.own, more)))
	if err != nil {
		return nil, v, err
	}
	if len(missing) > 0 {
		faults = append(faults, "no table "+strings.Join(missing, ", "))
	}
	wrong, err := filter(ctx, q, faulty, append(shapes(s.own, true), shapes(more, false)...))
	if err != nil {
		return nil, v, err
	}
	faults = append(faults, wrong...)
	if slices.Contains(missing, s.record.SQL()) {
		return faults, v, nil
	}
	// The second column was added later, and may be missing.
	recorded, err := column[int](ctx, q, `
SELECT n FROM `+s.record.SQL()+` AS v, LATERAL (VALUES (1, v.version), (2, coalesce((to_jsonb(v)->>'applied')::int, v.version))) AS x(i, n) ORDER BY i`)
	if err == nil && len(recorded) == 2 {
		v = versions{oldest: recorded[0], applied: recorded[1]}
	}
	return faults, v, err
}

// Each query takes a JSON array of names and returns some of them, in the same order. noTable
// returns the names without a table. taken returns the names of other relations. noSchema
// returns the schemas that do not exist. misplaced returns the names without a schema whose
// table is not where a new one would be created.
const (
	namesOf   = `SELECT x.name FROM json_array_elements_text($1::text::json) WITH ORDINALITY AS x(name, n) WHERE `
	noTable   = namesOf + `NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = to_regclass(x.name) AND c.relkind IN ('r', 'p')) ORDER BY n`
	taken     = namesOf + `EXISTS (SELECT FROM pg_class c WHERE c.oid = to_regclass(x.name) AND c.relkind NOT IN ('r', 'p')) ORDER BY n`
	noSchema  = namesOf + `NOT EXISTS (SELECT FROM pg_namespace s WHERE s.nspname = x.name) ORDER BY n`
	misplaced = namesOf + `strpos(x.name, '.') = 0 AND EXISTS (SELECT FROM pg_class c JOIN pg_namespace s ON s.oid = c.relnamespace
 WHERE c.oid = to_regclass(x.name) AND s.nspname <> current_schema()) ORDER BY n`
)

// filter passes a list to a query as JSON.
func filter[T any](ctx context.Context, q store.Querier, query string, all []T) ([]string, error) {
	if len(all) == 0 {
		return nil, nil
	}
	list, err := json.Marshal(all)
	if err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	return column[string](ctx, q, query, string(list))
}

func column[T any](ctx context.Context, q store.Querier, query string, args ...any) ([]T, error) {
	all, err := pgdriver.QueryAll(ctx, q, pgdriver.Value[T], query, args...)
	if err != nil {
		return nil, fmt.Errorf("migrations: cannot read the catalog: %w", err)
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
