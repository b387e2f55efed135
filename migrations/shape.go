package migrations

import (
	"context"
	"embed"
	"strings"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/sqltext"
	"github.com/pgfrontier/worker/store"
)

//go:embed sql/*.sql
var files embed.FS

// shape is what an existing table must have.
type shape struct {
	Table   string   `json:"table"`
	Columns []string `json:"columns"`
	Key     []string `json:"key"` // columns that need a unique index; empty: none
}

// shapes returns the shapes of tables. If whole is set, they are complete. Otherwise they have
// only the parts that Apply cannot add to an existing table.
func shapes(tables []table, whole bool) []shape {
	all := make([]shape, len(tables))
	for i, t := range tables {
		base, later := t.columnNames()
		all[i] = shape{Table: t.SQL(), Columns: append([]string{}, base...), Key: []string{}}
		if whole {
			all[i].Columns = append(all[i].Columns, later...)
			for _, c := range strings.Split(t.key, ", ") {
				all[i].Key = append(all[i].Key, columnName(c))
			}
		}
	}
	return all
}

var (
	texts        = sqltext.Parse(files)
	missingParts = texts.Statement("missing_parts", nil)
	faulty       = texts.Statement("faulty", nil)
)

// missingIndex names an index and describes equivalent ones.
type missingIndex struct {
	Index  string `json:"index"`
	Table  string `json:"table"`
	On     string `json:"on"` // empty: only this name will do
	Unique bool   `json:"unique"`
}

// missingIndexes returns the names of the missing indexes.
func missingIndexes(ctx context.Context, q store.Querier, tables []table) ([]string, error) {
	var all []missingIndex
	for _, t := range tables {
		for _, i := range t.indexes {
			x := missingIndex{Index: ident.Table{Schema: t.Schema, Name: t.indexName(i)}.SQL(), Table: t.SQL(), Unique: i.unique}
			if i.where == "" {
				x.On = i.on
			}
			all = append(all, x)
		}
	}
	return filter(ctx, q, `
SELECT x.value->>'index' FROM json_array_elements($1::text::json) WITH ORDINALITY AS x(value, n)
WHERE NOT EXISTS (SELECT FROM pg_class AS c WHERE c.oid = to_regclass(x.value->>'index') AND c.relkind IN ('i', 'I'))
AND NOT EXISTS (`+equivalent("x.value->>'table'", "(x.value->>'on')", "(x.value->>'unique')::boolean")+`)
ORDER BY n`, all)
}
