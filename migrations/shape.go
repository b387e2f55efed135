package migrations

import (
	"context"
	"strings"

	"github.com/pgfrontier/worker/internal/ident"
)

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

// Both queries take a JSON array of shapes and return the faults of each existing table. An
// unknown column that needs a value is a fault, too, since every INSERT would fail. So is a
// missing unique index, since every ON CONFLICT would fail.
const (
	shapesOf = `
WITH shape AS (
	SELECT x.n, x.value->>'table' AS name, c.oid, ARRAY(SELECT json_array_elements_text(x.value->'columns')) AS columns,
		ARRAY(SELECT k FROM json_array_elements_text(x.value->'key') AS k ORDER BY k COLLATE "C") AS key
	FROM json_array_elements($1::text::json) WITH ORDINALITY AS x(value, n)
	JOIN pg_class AS c ON c.oid = to_regclass(x.value->>'table') AND c.relkind IN ('r', 'p')
), attribute AS (
	SELECT a.attrelid AS oid, a.attnum AS number, a.attname::text AS name, a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AS wanting
	FROM pg_attribute AS a WHERE a.attrelid IN (SELECT oid FROM shape) AND a.attnum > 0 AND NOT a.attisdropped
), lacking AS (
	SELECT s.n, 1 AS k, s.name || ' has no column ' || string_agg(c.name, ', ' ORDER BY c.k) AS fault
	FROM shape AS s, unnest(s.columns) WITH ORDINALITY AS c(name, k)
	WHERE NOT EXISTS (SELECT FROM attribute AS a WHERE a.oid = s.oid AND a.name = c.name)
	GROUP BY s.n, s.name
)`
	missingParts = shapesOf + `
SELECT fault FROM lacking ORDER BY n`
	faulty = shapesOf + `
SELECT fault FROM (
	SELECT n, k, fault FROM lacking
	UNION ALL
	SELECT s.n, 2, s.name || ' has a column that the worker does not fill and that has no default: ' || string_agg(a.name, ', ' ORDER BY a.number)
	FROM shape AS s JOIN attribute AS a ON a.oid = s.oid
	WHERE cardinality(s.key) > 0 AND a.wanting AND a.name <> ALL (s.columns)
	GROUP BY s.n, s.name
	UNION ALL
	SELECT s.n, 3, s.name || ' has no unique index on (' || array_to_string(s.key, ', ') || ')'
	FROM shape AS s
	WHERE cardinality(s.key) > 0 AND s.key <@ ARRAY(SELECT a.name FROM attribute AS a WHERE a.oid = s.oid) AND NOT EXISTS (
		SELECT FROM pg_index AS i
		WHERE i.indrelid = s.oid AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
		AND s.key = ARRAY(
			SELECT a.name FROM attribute AS a
			WHERE a.oid = s.oid AND a.number = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]) ORDER BY a.name COLLATE "C"))
) AS found ORDER BY n, k`
)

// missingIndex names an index and describes equivalent ones.
type missingIndex struct {
	Index  string `json:"index"`
	Table  string `json:"table"`
	On     string `json:"on"` // empty: only this name will do
	Unique bool   `json:"unique"`
}

// missingIndexes returns the names of the missing indexes.
func missingIndexes(ctx context.Context, q Querier, tables []table) ([]string, error) {
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
