package frontier

import (
	"embed"

	"github.com/pgfrontier/worker/internal/changes"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/incarnation"
	"github.com/pgfrontier/worker/internal/sqltext"
)

//go:embed sql/*.sql
var files embed.FS

var texts = sqltext.Parse(files)

// statements is the SQL of one session. Every read of a log whose sequence is known also
// returns the incarnation and the counter of changes. It returns the identity of table and
// sequence as well. All come from one snapshot. $1 is the database's oid, $2 the table's name.
type statements struct {
	start, insert, place, tail, head, scan, raise string
	token                                         string // token and counter of changes: follows each read of a log whose sequence is not known
}

func (o origin) statements(token, settled, changed ident.Table) statements {
	of := incarnation.Of(token, o.table, o.sequence, `$1::bigint::oid`)
	current := `coalesce(` + of + `, '')`
	s := statements{
		insert: incarnation.InsertToken(token),
		token:  `SELECT ` + current + `, ` + changes.Count(changed),
	}
	if !o.named {
		s.scan = texts.Statement("scan_everything", nil)
		return s
	}
	const replaced = `coalesce(to_regclass($2::text)::oid::bigint, 0), s.tableoid::bigint, coalesce(pg_relation_filenode(s.tableoid), 0)::bigint`
	common := `SELECT ` + current + `, ` + changes.Count(changed) + `, ` + replaced + `, s.last_value, `
	s.start = common + `coalesce((SELECT settled FROM ` + settled.SQL() + ` WHERE log = $3::bigint), -1) FROM ` + o.sequence + ` AS s`
	s.tail = common + `
coalesce((SELECT string_agg(p::text, ',' ORDER BY p) FROM (
	SELECT ` + o.column + ` AS p FROM ` + o.table + ` WHERE ` + o.column + ` > $3::bigint ORDER BY ` + o.column + ` LIMIT $4::int) AS tail), '')
FROM ` + o.sequence + ` AS s`
	s.head = common + `coalesce((SELECT max(` + o.column + `) FROM ` + o.table + `), 0) FROM ` + o.sequence + ` AS s`
	s.scan = texts.Statement("scan", sqltext.Values{"common": common, "sequence": o.sequence})
	s.place = `
INSERT INTO ` + settled.SQL() + ` AS t (log, settled) VALUES ($1::bigint, 0)
ON CONFLICT (log) DO UPDATE SET settled = 0, updated_at = clock_timestamp() WHERE t.settled > $2::bigint`
	// SKIP LOCKED: a frontier must not wait for the row. Another frontier that holds the row
	// raises it as well. $1 is the key of the log, $4 the database.
	s.raise = `
UPDATE ` + settled.SQL() + ` SET settled = greatest(settled, $2::bigint), updated_at = clock_timestamp()
WHERE log = (
	SELECT log FROM ` + settled.SQL() + `
	WHERE log = $1::bigint AND settled < $2::bigint AND ` + incarnation.Of(token, o.table, o.sequence, `$4::bigint::oid`) + ` = $3::text
	FOR UPDATE SKIP LOCKED)`
	return s
}
