package migrations

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/pgfrontier/worker/internal/ident"
)

// table is a table definition, from which a table is created or upgraded.
type table struct {
	ident.Table
	comment  string
	unlogged bool
	columns  []string
	checks   []string // constraints over several columns
	with     string   // storage parameters
	key      string   // columns of the primary key
	serial   string   // the column with its own sequence; empty: none
	unique   []string // columns of each unique constraint
	changes  []string // ALTER TABLE actions; each safe to repeat
	fixes    []fix
	indexes  []index // an equivalent index of any name is enough
}

// fix is an ALTER COLUMN action that follows the changes. It is skipped if the table has no
// such column.
type fix struct{ column, action string }

type index struct {
	on, where string
	unique    bool
	as        string // part of the name instead of the columns; empty: the columns
}

// statements returns the statements that create or upgrade the table. Each is safe to repeat.
func (t table) statements() []string {
	statements := []string{t.create()}
	if len(t.changes) > 0 {
		statements = append(statements, do(fmt.Sprintf("IF %s\nTHEN ALTER TABLE %s\n    %s; END IF;", t.outdated(), t.SQL(), strings.Join(t.changes, ",\n    "))))
	}
	for _, f := range t.fixes {
		statements = append(statements, do(fmt.Sprintf("IF EXISTS (%s\n) THEN ALTER TABLE %s ALTER COLUMN %s %s; END IF;", t.unfixed(f), t.SQL(), ident.Quote(f.column), f.action)))
	}
	return statements
}

// outdated returns an SQL condition: at least one change is missing. ALTER TABLE takes an
// ACCESS EXCLUSIVE lock even if it changes nothing.
func (t table) outdated() string {
	var columns, defaults, constraints []string
	for _, c := range t.changes {
		if column, ok := strings.CutPrefix(c, "ADD COLUMN IF NOT EXISTS "); ok {
			columns = append(columns, ident.Literal(columnName(column)))
		} else if column, ok := strings.CutPrefix(c, "ALTER COLUMN "); ok {
			defaults = append(defaults, ident.Literal(columnName(column)))
		} else if name, ok := strings.CutPrefix(c, "DROP CONSTRAINT IF EXISTS "); ok {
			constraints = append(constraints, ident.Literal(strings.ReplaceAll(strings.Trim(name, `"`), `""`, `"`)))
		} else {
			panic("migrations: nobody knows when this change is needed: " + c)
		}
	}
	of := func(names []string) string { return "(" + strings.Join(names, ", ") + ")" }
	oid := "to_regclass(" + ident.Literal(t.SQL()) + ")"
	var any []string
	if len(columns) > 0 {
		any = append(any, fmt.Sprintf(`(
    SELECT count(*) FROM pg_attribute WHERE attrelid = %s AND NOT attisdropped AND attname IN %s
) < %d`, oid, of(columns), len(columns)))
	}
	if len(defaults) > 0 {
		any = append(any, fmt.Sprintf(`(
    SELECT count(*) FROM pg_attribute AS a JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = %s AND a.attname IN %s AND pg_get_expr(d.adbin, d.adrelid) = 'clock_timestamp()'
) < %d`, oid, of(defaults), len(defaults)))
	}
	if len(constraints) > 0 {
		any = append(any, fmt.Sprintf(`EXISTS (
    SELECT FROM pg_constraint WHERE conrelid = %s AND conname IN %s
)`, oid, of(constraints)))
	}
	return strings.Join(any, " OR ")
}

// unfixed selects the column of a fix if the fix would change something.
func (t table) unfixed(f fix) string {
	is := map[string]string{"DROP DEFAULT": "atthasdef", "DROP NOT NULL": "attnotnull"}[f.action]
	if is == "" {
		is = "NOT atthasdef" // SET DEFAULT
	}
	return fmt.Sprintf(`
    SELECT FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = %s AND NOT attisdropped AND %s`, ident.Literal(t.SQL()), ident.Literal(f.column), is)
}

// do returns a DO statement of PL/pgSQL. No line within the body may end with a semicolon,
// since some migration tools end a statement there.
func do(body string) string {
	quote := "$do$"
	for n := 1; strings.Contains(body, quote); n++ {
		quote = fmt.Sprintf("$do%d$", n)
	}
	return "DO " + quote + " BEGIN " + body + " END " + quote
}

func (t table) create() string {
	lines := append([]string(nil), t.columns...)
	for _, c := range t.checks {
		lines = append(lines, "CHECK ("+c+")")
	}
	lines = append(lines, fmt.Sprintf("CONSTRAINT %s PRIMARY KEY (%s)", ident.Quote(t.keyName()), t.key))
	for _, u := range t.unique {
		lines = append(lines, fmt.Sprintf("CONSTRAINT %s UNIQUE (%s)", ident.Quote(t.uniqueName(u)), u))
	}
	kind := "TABLE"
	if t.unlogged {
		kind = "UNLOGGED TABLE"
	}
	with := ""
	if t.with != "" {
		with = " WITH (" + t.with + ")"
	}
	return fmt.Sprintf("-- %s: %s\nCREATE %s IF NOT EXISTS %s (\n    %s\n)%s", t, t.comment, kind, t.SQL(), strings.Join(lines, ",\n    "), with)
}

func (t table) keyName() string            { return relationName(t.Name, "pkey") }
func (t table) uniqueName(u string) string { return relationName(t.Name, columnsPart(u)+"_key") }
func (t table) indexName(i index) string {
	return relationName(t.Name, columnsPart(cmp.Or(i.as, i.on))+"_idx")
}

// beside returns a name in the schema of the table.
func (t table) beside(name string) ident.Table { return ident.Table{Schema: t.Schema, Name: name} }

func (t table) sequenceName() string { return givenName(t.Name, "_"+t.serial+"_seq") }

// givenName returns the name that PostgreSQL gives to a serial column's sequence or to a
// constraint. PostgreSQL cuts a long table name.
func givenName(table, suffix string) string {
	return table[:min(len(table), maxName-len(suffix))] + suffix
}

// columnNames returns the columns that every version had, and the later ones.
func (t table) columnNames() (base, later []string) {
	for _, c := range t.changes {
		if added, ok := strings.CutPrefix(c, "ADD COLUMN IF NOT EXISTS "); ok {
			later = append(later, columnName(added))
		}
	}
	for _, c := range t.columns {
		if name := columnName(c); !slices.Contains(later, name) {
			base = append(base, name)
		}
	}
	return base, later
}

// columnName returns the column's name from its definition.
func columnName(definition string) string {
	return strings.Trim(strings.Fields(definition)[0], `"`)
}

func columnsPart(columns string) string { return strings.ReplaceAll(columns, ", ", "_") }

// maxName is the maximum length of a PostgreSQL identifier, in bytes.
const maxName = 63

// relationName returns table_suffix. If that is too long, relationName cuts the table's name
// and appends a hash of the whole name. So two names never collide.
func relationName(table, suffix string) string {
	whole := table + "_" + suffix
	if len(whole) <= maxName {
		return whole
	}
	sum := sha256.Sum256([]byte(whole))
	tail := "_" + hex.EncodeToString(sum[:4]) + "_" + suffix
	return table[:maxName-len(tail)] + tail
}

// relation is a name that is used in a schema: tables, indexes and sequences share one namespace.
type relation struct {
	ident.Table
	what string
}

func (t table) relations() []relation {
	all := []relation{{t.Table, fmt.Sprintf("table %q", t)}, {t.beside(t.keyName()), fmt.Sprintf("the primary key of %q", t)}}
	if t.serial != "" {
		all = append(all, relation{t.beside(t.sequenceName()), fmt.Sprintf("the sequence of %q", t)})
	}
	for _, u := range t.unique {
		all = append(all, relation{t.beside(t.uniqueName(u)), fmt.Sprintf("a unique constraint of %q", t)})
	}
	for _, i := range t.indexes {
		all = append(all, relation{t.beside(t.indexName(i)), fmt.Sprintf("an index of %q", t)})
	}
	return all
}

// checkDistinct refuses names that collide: CREATE ... IF NOT EXISTS would silently take one
// relation for the other. A name without a schema may be in any schema.
func checkDistinct(tables []table) error {
	var seen []relation
	for _, t := range tables {
		for _, r := range t.relations() {
			for _, other := range seen {
				if r.Name == other.Name && (r.Schema == other.Schema || r.Schema == "" || other.Schema == "") {
					return fmt.Errorf("migrations: %s and %s may both be called %q: choose table names that differ more, each with its schema", other.what, r.what, r.Name)
				}
			}
			seen = append(seen, r)
		}
	}
	return nil
}
