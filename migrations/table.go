package migrations

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/pgfrontier/worker/internal/ident"
)

// table describes a table, enough to create it and to upgrade an older one.
type table struct {
	ident.Table
	comment  string
	unlogged bool
	columns  []string
	key      string   // columns of the primary key
	serial   string   // the column with a sequence of its own, if any
	unique   []string // columns of each unique constraint
	changes  []string // ALTER TABLE actions; each safe to repeat
	indexes  []index
}

type index struct {
	on, where string
	as        string // in its name instead of the columns, where these are too many
}

// statements returns what creates or upgrades the table, each safe to repeat.
func (t table) statements() []string {
	statements := []string{t.create()}
	if len(t.changes) > 0 {
		statements = append(statements, fmt.Sprintf("ALTER TABLE %s\n    %s", t.SQL(), strings.Join(t.changes, ",\n    ")))
	}
	for _, i := range t.indexes {
		where := ""
		if i.where != "" {
			where = " WHERE " + i.where
		}
		statements = append(statements, fmt.Sprintf("CREATE INDEX IF NOT EXISTS %s ON %s (%s)%s", ident.Quote(t.indexName(i)), t.SQL(), i.on, where))
	}
	return statements
}

func (t table) create() string {
	lines := append([]string(nil), t.columns...)
	lines = append(lines, fmt.Sprintf("CONSTRAINT %s PRIMARY KEY (%s)", ident.Quote(t.keyName()), t.key))
	for _, u := range t.unique {
		lines = append(lines, fmt.Sprintf("CONSTRAINT %s UNIQUE (%s)", ident.Quote(t.uniqueName(u)), u))
	}
	kind := "TABLE"
	if t.unlogged {
		kind = "UNLOGGED TABLE"
	}
	return fmt.Sprintf("-- %s: %s\nCREATE %s IF NOT EXISTS %s (\n    %s\n)", t, t.comment, kind, t.SQL(), strings.Join(lines, ",\n    "))
}

func (t table) keyName() string            { return relationName(t.Name, "pkey") }
func (t table) uniqueName(u string) string { return relationName(t.Name, columnsPart(u)+"_key") }
func (t table) indexName(i index) string {
	return relationName(t.Name, columnsPart(cmp.Or(i.as, i.on))+"_idx")
}

// sequenceName is the name PostgreSQL gives to a serial column's sequence: too
// long a table name is cut.
func (t table) sequenceName() string {
	suffix := "_" + t.serial + "_seq"
	return t.Name[:min(len(t.Name), maxName-len(suffix))] + suffix
}

// indexNames returns the indexes as they stand in SQL, with the table's schema.
func (t table) indexNames() []string {
	all := make([]string, len(t.indexes))
	for i, x := range t.indexes {
		all[i] = ident.Table{Schema: t.Schema, Name: t.indexName(x)}.SQL()
	}
	return all
}

func columnsPart(columns string) string { return strings.ReplaceAll(columns, ", ", "_") }

// maxName is the longest identifier PostgreSQL keeps whole, in bytes.
const maxName = 63

// relationName is table_suffix; if that is too long, the table's name is cut
// and a hash of the whole put in its place, so that two never meet.
func relationName(table, suffix string) string {
	whole := table + "_" + suffix
	if len(whole) <= maxName {
		return whole
	}
	sum := sha256.Sum256([]byte(whole))
	tail := "_" + hex.EncodeToString(sum[:4]) + "_" + suffix
	return table[:maxName-len(tail)] + tail
}

// relation is a name taken in a schema: tables, indexes and sequences share
// one space there.
type relation struct {
	ident.Table
	what string
}

func (t table) relations() []relation {
	at := func(name string) ident.Table { return ident.Table{Schema: t.Schema, Name: name} }
	all := []relation{{t.Table, fmt.Sprintf("table %q", t)}, {at(t.keyName()), fmt.Sprintf("the primary key of %q", t)}}
	if t.serial != "" {
		all = append(all, relation{at(t.sequenceName()), fmt.Sprintf("the sequence of %q", t)})
	}
	for _, u := range t.unique {
		all = append(all, relation{at(t.uniqueName(u)), fmt.Sprintf("a unique constraint of %q", t)})
	}
	for _, i := range t.indexes {
		all = append(all, relation{at(t.indexName(i)), fmt.Sprintf("an index of %q", t)})
	}
	return all
}

// checkDistinct refuses names that meet: CREATE ... IF NOT EXISTS would take
// one relation for the other and say nothing. A name without a schema may be
// in any schema.
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
