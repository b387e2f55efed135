package table

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/rights"
	"github.com/pgfrontier/worker/store"
)

// column is a column that a table of jobs needs.
type column struct {
	name    string
	kind    string // types it may have
	ddl     string // definition to add it
	then    string // definition to change once it exists
	cleared bool   // statements set it to NULL
	read    bool   // statements never write it
}

const (
	integers   = "smallint, integer or bigint"
	texts      = "text or varchar"
	times      = "timestamp with time zone"
	labels     = "text, varchar or an enum"
	logs       = "json[] or jsonb[]"
	booleans   = "boolean"
	stateBytes = 10 // length of the longest state
)

var columns = []column{
	{name: "id", kind: integers, ddl: "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY", read: true},
	{name: "state", kind: labels, ddl: "text NOT NULL DEFAULT 'completed'", then: "SET DEFAULT 'queued'"},
	{name: "failure_message", kind: texts, ddl: "text", cleared: true},
	{name: "queued_at", kind: times, ddl: "timestamptz DEFAULT now()"},
	{name: "started_at", kind: times, ddl: "timestamptz", cleared: true},
	{name: "last_heartbeat_at", kind: times, ddl: "timestamptz"},
	{name: "finished_at", kind: times, ddl: "timestamptz", cleared: true},
	{name: "process_after", kind: times, ddl: "timestamptz"},
	{name: "num_resets", kind: integers, ddl: "integer NOT NULL DEFAULT 0"},
	{name: "num_failures", kind: integers, ddl: "integer NOT NULL DEFAULT 0"},
	{name: "execution_logs", kind: logs, ddl: "json[]", cleared: true},
	{name: "worker_hostname", kind: texts, ddl: "text NOT NULL DEFAULT ''"},
	{name: "cancel", kind: booleans, ddl: "boolean NOT NULL DEFAULT false"},
}

// types are the SQL types of columns for casts in statements.
type types struct{ state, message, log string }

// attribute is a column as the catalog describes it.
type attribute struct {
	name, full, base string // full: as in SQL; base: the type, or the type under a domain
	length           int    // of a varchar or a timestamp; -1: none
	notNull, made    bool   // made: GENERATED ALWAYS AS, or as an identity
	enum             []string
	number           int
}

func scanAttribute(rows *sql.Rows) (a attribute, err error) {
	var labels string
	err = rows.Scan(&a.name, &a.full, &a.base, &a.length, &a.notNull, &a.made, &a.number, &labels)
	if labels != "" {
		a.enum = strings.Split(labels, ",")
	}
	return a, err
}

// holds returns why the column cannot hold the values that are written into it, "" if it can.
func (a attribute) holds(kind string, hostname int) (finding string) {
	switch kind {
	case integers:
		if !slices.Contains([]string{"smallint", "integer", "bigint"}, a.base) {
			return "must be " + integers
		}
	case times:
		if a.base != "timestamp with time zone" {
			return "must be " + times
		}
		if a.length >= 0 && a.length < 6 {
			return "must have microseconds, which tell claims apart: use timestamptz without a precision"
		}
	case booleans:
		if a.base != "boolean" {
			return "must be " + booleans
		}
	case logs:
		if a.base != "json[]" && a.base != "jsonb[]" {
			return "must be " + logs
		}
	case labels:
		if a.enum != nil {
			for _, s := range states {
				if !slices.Contains(a.enum, string(s)) {
					return fmt.Sprintf("has no value %s: ALTER TYPE %s ADD VALUE '%s'", s, a.full, s)
				}
			}
			return ""
		}
		return a.holdsText(labels, stateBytes)
	case texts:
		return a.holdsText(texts, hostname)
	}
	return ""
}

func (a attribute) holdsText(kind string, length int) (finding string) {
	if a.base != "text" && a.base != "character varying" {
		return "must be " + kind
	}
	if most := a.length - 4; a.length >= 0 && most < length { // as the catalog counts
		return fmt.Sprintf("takes %d characters, and needs %d", most, length)
	}
	return ""
}

// inspect resolves the table and the view, and makes the statements. Each finding is one line about
// a part that does not fit.
func inspect(ctx context.Context, on store.Querier, s settings, hostname string) (found settings, sql statements, findings []string, err error) {
	for _, r := range []*relation{&s.table, &s.view} {
		finding, err := r.resolve(ctx, on, r == &s.table)
		if err != nil {
			return s, sql, nil, err
		}
		if finding != "" {
			findings = append(findings, finding)
		}
	}
	if len(findings) > 0 {
		return s, sql, slices.Compact(findings), nil
	}
	attributes, err := s.attributes(ctx, on, s.table)
	if err != nil {
		return s, sql, nil, err
	}
	s.columns = maps.Clone(s.columns)
	for _, c := range columns {
		if name := s.columns[c.name]; attributes[name].name == "" {
			s.columns[c.name] = strings.ToLower(name)
		}
	}
	if err := distinct(s.columns); err != nil {
		return s, sql, []string{err.Error()}, nil
	}
	for _, c := range columns {
		findings = append(findings, s.fits(c, attributes, hostname)...)
	}
	if len(findings) > 0 {
		return s, sql, findings, nil
	}
	t := types{attributes[s.columns["state"]].full, attributes[s.columns["failure_message"]].full, strings.TrimSuffix(attributes[s.columns["execution_logs"]].base, "[]")}
	for _, look := range []func() ([]string, error){
		func() ([]string, error) { return s.uniqueID(ctx, on, attributes[s.columns["id"]].number) },
		func() ([]string, error) { return s.allowsStates(ctx, on, attributes[s.columns["state"]]) },
		func() ([]string, error) { return s.viewHasID(ctx, on) },
	} {
		more, err := look()
		if err != nil {
			return s, sql, nil, err
		}
		findings = append(findings, more...)
	}
	return s, newStatements(s, t), findings, nil
}

// resolve finds a table or view and its schema. The name is tried as written, then in lower case.
func (r *relation) resolve(ctx context.Context, on store.Querier, table bool) (finding string, err error) {
	var kind, persistence, similar string
	var found ident.Table
	err = on.QueryRowContext(ctx, sqlTexts["resolve"], r.written.SQL(), r.SQL(), r.Name).Scan(&found.Schema, &found.Name, &kind, &persistence, &similar)
	switch {
	case pgdriver.SQLState(err) == pgdriver.InsufficientPrivilege:
		return "", fmt.Errorf("jobs/table: %w: it may not use the schema of %s: GRANT USAGE ON SCHEMA %s", ErrPrivileges, r, ident.Quote(r.Schema))
	case err != nil:
		return "", fmt.Errorf("jobs/table: find %s: %w", r, err)
	case kind == "" && similar != "" && similar != r.Name:
		return fmt.Sprintf("there is no %s that this role sees, but %s: write its capitals, or give its schema", r, ident.Quote(similar)), nil
	case kind == "":
		return fmt.Sprintf("there is no %s that this role sees: create it, give its schema, or GRANT USAGE ON its SCHEMA", r), nil
	case persistence == "t":
		return fmt.Sprintf("%s is temporary: other sessions do not see it", r), nil
	case table && kind != "r" && kind != "p":
		return fmt.Sprintf("%s is no table: give the table as TableName, and what is to be read as ViewName", r), nil
	}
	if !r.aliased {
		r.alias = found.Name
	}
	r.Table = found
	return "", nil
}

func (s settings) attributes(ctx context.Context, on store.Querier, of relation) (map[string]attribute, error) {
	all, err := pgdriver.QueryAll(ctx, on, scanAttribute, sqlTexts["attributes"], of.SQL())
	if err != nil {
		return nil, fmt.Errorf("jobs/table: read the columns of %s: %w", of, err)
	}
	by := map[string]attribute{}
	for _, a := range all {
		by[a.name] = a
	}
	return by, nil
}

// fits returns the findings about one column.
func (s settings) fits(c column, attributes map[string]attribute, hostname string) (findings []string) {
	name := s.columns[c.name]
	at, is := attributes[name]
	if !is {
		for other := range attributes {
			if strings.EqualFold(other, name) {
				return []string{fmt.Sprintf("%s has no column %s, but %s: AlternateColumnNames: {%q: %q}", s.table, name, ident.Quote(other), c.name, other)}
			}
		}
		then := ""
		if c.then != "" {
			then = fmt.Sprintf("; ALTER TABLE %s ALTER COLUMN %s %s (so the rows that are there are no jobs: queue those that are to run)", s.table.SQL(), ident.Quote(name), c.then)
		}
		return []string{fmt.Sprintf("%s has no column %s: ALTER TABLE %s ADD COLUMN %s %s%s, or if it has another name, give that in AlternateColumnNames", s.table, name, s.table.SQL(), ident.Quote(name), c.ddl, then)}
	}
	about := fmt.Sprintf("column %s of %s (%s) ", name, s.table, at.full)
	needs := 0
	if c.name == "worker_hostname" {
		needs = len(hostname)
	}
	if f := at.holds(c.kind, needs); f != "" {
		findings = append(findings, about+f)
	}
	if c.cleared && at.notNull {
		findings = append(findings, about+fmt.Sprintf("is NOT NULL, and is cleared at times: ALTER TABLE %s ALTER COLUMN %s DROP NOT NULL", s.table.SQL(), ident.Quote(name)))
	}
	if at.made && !c.read {
		findings = append(findings, about+"is GENERATED ALWAYS, and must be written")
	}
	return findings
}

// uniqueID returns a finding if two rows may have the same ID.
func (s settings) uniqueID(ctx context.Context, on store.Querier, number int) (findings []string, err error) {
	var unique bool
	err = on.QueryRowContext(ctx, `
SELECT EXISTS (SELECT FROM pg_index WHERE indrelid = to_regclass($1::text) AND indisunique AND indisvalid AND indpred IS NULL
	AND indnkeyatts = 1 AND indkey[0] = $2::int)`, s.table.SQL(), number).Scan(&unique)
	if err != nil {
		return nil, fmt.Errorf("jobs/table: find the key of %s: %w", s.table, err)
	}
	if !unique {
		findings = append(findings, fmt.Sprintf("column %s of %s has no unique index of its own: ALTER TABLE %s ADD PRIMARY KEY (%s)", s.columns["id"], s.table, s.table.SQL(), ident.Quote(s.columns["id"])))
	}
	return findings, nil
}

// allowsStates returns a finding if a CHECK constraint refuses a state. It asks only the
// constraints about the state alone. Constraints about more columns show when a row is written.
func (s settings) allowsStates(ctx context.Context, on store.Querier, state attribute) (findings []string, err error) {
	type check struct{ name, expression string }
	checks, err := pgdriver.QueryAll(ctx, on, func(rows *sql.Rows) (c check, err error) {
		err = rows.Scan(&c.name, &c.expression)
		return c, err
	}, `
SELECT conname::text, pg_get_expr(conbin, conrelid) FROM pg_constraint
WHERE conrelid = to_regclass($1::text) AND contype = 'c' AND conkey = ARRAY[$2::int::smallint]`, s.table.SQL(), state.number)
	if err != nil {
		return nil, fmt.Errorf("jobs/table: read the constraints of %s: %w", s.table, err)
	}
	var all []string
	for _, one := range states {
		all = append(all, ident.Literal(string(one)))
	}
	for _, c := range checks {
		refused, err := pgdriver.QueryAll(ctx, on, pgdriver.Value[string], `
SELECT s."`+state.name+`"::text FROM (SELECT v::`+state.full+` AS "`+state.name+`" FROM unnest(ARRAY[`+strings.Join(all, ", ")+`]) AS v) AS s
WHERE NOT (`+c.expression+`)`)
		if err != nil {
			return nil, fmt.Errorf("jobs/table: try constraint %s of %s: %w", c.name, s.table, err)
		}
		if len(refused) > 0 {
			slices.Sort(refused)
			findings = append(findings, fmt.Sprintf("constraint %s of %s refuses the states %s: ALTER TABLE %s DROP CONSTRAINT %s, and add one that allows them",
				c.name, s.table, strings.Join(refused, ", "), s.table.SQL(), ident.Quote(c.name)))
		}
	}
	return findings, nil
}

// viewHasID returns a finding if the ID does not identify rows of the view.
func (s settings) viewHasID(ctx context.Context, on store.Querier) (findings []string, err error) {
	attributes, err := s.attributes(ctx, on, s.view)
	if err != nil {
		return nil, err
	}
	id, is := attributes[s.columns["id"]]
	switch {
	case !is:
		findings = append(findings, fmt.Sprintf("%s has no column %s, by which its rows are found: add the one of %s", s.view, s.columns["id"], s.table))
	case id.holds(integers, 0) != "":
		findings = append(findings, fmt.Sprintf("column %s of %s (%s) %s, as in %s", s.columns["id"], s.view, id.full, id.holds(integers, 0), s.table))
	}
	return findings, nil
}

// lacks returns the privileges that the worker's role lacks. Policies may hide rows, such as with a
// role for each tenant. If the policies let the role do nothing, the worker would idle, so lacks
// reports this.
func (s settings) lacks(ctx context.Context, on store.Querier) ([]string, error) {
	var reads, writes []string
	for _, c := range columns {
		name := ident.Quote(s.columns[c.name])
		reads = append(reads, name)
		if !c.read && c.name != "cancel" {
			writes = append(writes, name)
		}
	}
	needs := []rights.Need{
		{Table: s.table.SQL(), Privilege: "SELECT", Columns: reads, Policies: true},
		{Table: s.table.SQL(), Privilege: "UPDATE", Columns: writes, Policies: true},
		{Table: s.view.SQL(), Privilege: "SELECT", Columns: []string{ident.Quote(s.columns["id"])}, Policies: true},
	}
	missing, err := rights.Missing(ctx, on, needs)
	if err != nil {
		return nil, fmt.Errorf("jobs/table: %w", err)
	}
	return missing, nil
}

// tries plans the expressions of the user one by one, and then the statements that contain them.
func (s statements) tries(ctx context.Context, on store.Querier) (findings []string, err error) {
	type try struct {
		about, statement string
		args             []any
	}
	explain := func(tries ...try) error {
		for _, t := range tries {
			rows, err := on.QueryContext(ctx, "EXPLAIN "+t.statement, t.args...)
			if err == nil {
				_ = rows.Close()
				err = rows.Err()
			}
			switch {
			case err != nil && (pgdriver.SQLState(err) == "" || pgdriver.IsConnectionLoss(err)):
				return fmt.Errorf("jobs/table: plan the statements: %w", err)
			case err != nil:
				findings = append(findings, fmt.Sprintf("%s: PostgreSQL says: %v", t.about, errtext.Of(err)))
			}
		}
		return nil
	}
	err = explain(try{"Condition", s.tryCondition, nil}, try{"OrderByExpression", s.tryOrder, nil}, try{"ColumnExpressions", s.tryExpression, nil})
	if err != nil || len(findings) > 0 {
		return findings, err
	}
	const none = "{}"
	err = explain(
		try{"OrderByExpression and Condition in a claim, where they must be about one row", s.claim.with("", 1), []any{none, ""}},
		try{"ColumnExpressions, which must be about one row", s.read, []any{none}},
		try{"Condition in a count", s.count, []any{none}},
		try{"Condition in a search for the longest wait", s.longest, nil},
		try{"a heartbeat", s.beat, []any{none, none, "", none}},
		try{"the end of a run", s.settle, []any{"[]", ""}},
		try{"a claim that is given back", s.releaseOrphans, []any{none, ""}},
		try{"a search for stalled rows", s.stalled, nil},
		try{"a reset", s.reset, []any{none, none}},
	)
	return findings, err
}
