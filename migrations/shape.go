package migrations

import (
	"embed"
	"fmt"
	"slices"
	"strings"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/sqltext"
)

//go:embed sql/*.sql
var files embed.FS

// shape is what an existing table must have.
type shape struct {
	Table   string       `json:"table"`
	Columns []string     `json:"columns"`
	Whole   bool         `json:"whole"` // it has all unique indexes, and no other column needs a value
	Indexes []indexShape `json:"indexes"`
}

// shapes returns the shapes of tables. If whole is set, they are complete. Otherwise they have
// only the parts that Apply cannot add to an existing table.
func shapes(tables []table, whole bool) []shape {
	all := make([]shape, len(tables))
	for i, t := range tables {
		base, later := t.columnNames()
		all[i] = shape{Table: t.SQL(), Columns: append([]string{}, base...), Whole: whole, Indexes: t.shapes(whole)}
		if whole {
			all[i].Columns = append(all[i].Columns, later...)
		}
	}
	return all
}

var (
	texts          = sqltext.Parse(files)
	missingParts   = texts.Statement("missing_parts", nil)
	missingIndexes = texts.Statement("missing_indexes", nil)
	faulty         = texts.Statement("faulty", nil)
)

// indexShape is an index that a table must have, or one like it.
type indexShape struct {
	Relation  string   `json:"relation"`
	On        string   `json:"on"`
	Columns   []string `json:"columns"` // of a unique index, sorted
	Predicate string   `json:"predicate"`
	Unique    bool     `json:"unique"`
	create    string
}

// shapes returns the indexes of a table. Without whole, it returns those that are not unique.
func (t table) shapes(whole bool) []indexShape {
	all := []indexShape{}
	add := func(name, on, where string, unique bool) {
		x := indexShape{t.beside(name).SQL(), on, []string{}, where, unique, "CREATE INDEX"}
		if unique {
			for c := range strings.SplitSeq(on, ", ") {
				x.Columns = append(x.Columns, columnName(c))
			}
			slices.Sort(x.Columns)
			x.create = "CREATE UNIQUE INDEX"
		}
		if x.create += fmt.Sprintf(" IF NOT EXISTS %s ON %s (%s)", ident.Quote(name), t.SQL(), on); where != "" {
			x.create += " WHERE " + where
		}
		all = append(all, x)
	}
	key := whole
	for _, i := range t.indexes {
		if key = key && !(i.unique && i.on == t.key); whole || !i.unique {
			add(t.indexName(i), i.on, i.where, i.unique)
		}
	}
	if key {
		add(t.keyName(), t.key, "", true)
	}
	return all
}

// createIndexes returns a statement that creates the missing indexes of tables. CREATE INDEX locks
// its table even if it creates nothing.
func createIndexes(tables []table, whole bool) string {
	var rows []string
	for _, t := range tables {
		for _, x := range t.shapes(whole) {
			rows = append(rows, fmt.Sprintf("(%s, %s, %s, %s, %s::text[], %s, %t)", ident.Literal(x.create), ident.Literal(t.SQL()), ident.Literal(x.Relation),
				ident.Literal(x.On), ident.Literal("{"+strings.Join(x.Columns, ",")+"}"), ident.Literal(x.Predicate), x.Unique))
		}
	}
	return do(texts.Statement("create_indexes", sqltext.Values{"indexes": strings.Join(rows, ",\n    ")}))
}
