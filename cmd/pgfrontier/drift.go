package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"regexp"
	"strings"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
)

// expected is a part of a table that the migrations create: a column, an index, or that the table is
// logged or not.
type expected struct {
	Table    string `json:"table"`
	Column   string `json:"column,omitempty"`
	Type     string `json:"type,omitempty"`
	Index    string `json:"index,omitempty"` // with its schema
	On       string `json:"on,omitempty"`
	Create   string `json:"create,omitempty"` // a statement
	Unique   bool   `json:"unique"`
	Unlogged bool   `json:"unlogged"`
}

var (
	createTable  = regexp.MustCompile(`^CREATE (UNLOGGED )?TABLE IF NOT EXISTS (.+) \($`)
	createColumn = regexp.MustCompile(`^    (?:ADD COLUMN IF NOT EXISTS )?("only"|[a-z_]+) ([A-Z]+(?:\[\])?)(?:[ ,;]|$)`)
	constraint   = regexp.MustCompile(`^    CONSTRAINT (".+") (?:UNIQUE|PRIMARY KEY) \((.+)\),?$`)
	createIndex  = regexp.MustCompile(`^    \('(CREATE INDEX IF NOT EXISTS .+)', '(.+)', '(.+)', '(.+)', '\{\}'::text\[\], '`)
)

// expectedOf reads what a text of package migrations creates. Of the event store it reads the unique
// constraints as well, which migrations.Check leaves to programs that append in other ways.
func expectedOf(text string, ofStore bool) (all []expected) {
	var table string
	unquote := func(s string) string { return strings.ReplaceAll(s, "''", "'") }
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if m := createTable.FindStringSubmatch(line); m != nil {
			table = m[2]
			all = append(all, expected{Table: table, Unlogged: m[1] != ""})
		} else if m := createIndex.FindStringSubmatch(line); m != nil {
			all = append(all, expected{Table: unquote(m[2]), Index: unquote(m[3]), On: unquote(m[4]), Create: strings.Replace(unquote(m[1]), "INDEX IF NOT EXISTS", "INDEX CONCURRENTLY", 1)})
		} else if m := constraint.FindStringSubmatch(line); m != nil {
			if ofStore {
				all = append(all, expected{Table: table, Index: m[1], On: m[2], Unique: true, Create: "CREATE UNIQUE INDEX CONCURRENTLY " + m[1] + " ON " + table + " (" + m[2] + ")"})
			}
		} else if m := createColumn.FindStringSubmatch(line); m != nil {
			all = append(all, expected{Table: table, Column: m[1], Type: strings.Replace(m[2], "SERIAL", "INT", 1)})
		}
	}
	return all
}

// driftSQL returns the differences between existing tables and the expected parts $1, each with its
// remedy. A partitioned table has no unique index without the key of its partitions.
const driftSQL = `
SELECT CASE WHEN x."column" IS NOT NULL THEN x."table" || '.' || x."column" || ' has type ' || format_type(a.atttypid, a.atttypmod) || ', not ' || format_type(to_regtype(x.type), NULL)
	WHEN x."index" IS NULL AND x.unlogged THEN x."table" || ' is logged, so a crash of the server does not show in it'
	WHEN x."index" IS NULL THEN x."table" || ' is UNLOGGED, so a crash of the server empties it'
	WHEN x."unique" THEN x."table" || ' has no unique index on (' || x."on" || '), so an append stores what it would refuse, or fails'
	ELSE x."table" || ' has no index on (' || x."on" || '), so statements read the whole table' END,
	CASE WHEN to_regclass(x."index") IS NOT NULL THEN 'DROP INDEX CONCURRENTLY ' || x."index" || '; ' ELSE '' END || coalesce(x."create", 'ALTER TABLE ' || x."table" || CASE WHEN x."column" IS NOT NULL THEN ' ALTER COLUMN ' || x."column" || ' TYPE ' || x.type || ' USING ' || x."column" || '::' || x.type WHEN x.unlogged THEN ' SET UNLOGGED' ELSE ' SET LOGGED' END)
FROM ROWS FROM (json_to_recordset($1::text::json) AS ("table" text, "column" text, type text, "index" text, "on" text, "create" text, "unique" boolean, unlogged boolean))
	WITH ORDINALITY AS x("table", "column", type, "index", "on", "create", "unique", unlogged, n)
JOIN pg_class AS c ON c.oid = to_regclass(x."table") AND c.relkind IN ('r', 'p')
LEFT JOIN pg_attribute AS a ON a.attrelid = c.oid AND quote_ident(a.attname) = x."column" AND NOT a.attisdropped
WHERE CASE WHEN x."column" IS NOT NULL THEN a.atttypid <> to_regtype(x.type)
	WHEN x."index" IS NULL THEN (c.relpersistence = 'u') <> x.unlogged
	ELSE NOT (x."unique" AND c.relkind = 'p') AND (x."unique" OR to_regclass(x."index") IS NULL) AND NOT EXISTS (
		SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisvalid AND (i.indisunique AND i.indimmediate OR NOT x."unique")
		AND split_part(pg_get_indexdef(i.indexrelid), ' USING ', 2) = 'btree (' || x."on" || ')') END
ORDER BY n`

// findDrift returns how the tables differ from those that the migrations create where no statement
// fails for it, so that migrations.Check does not say so.
func findDrift(ctx context.Context, q store.Querier, names store.Names) (says, remedies []string, err error) {
	var all []expected
	for i, text := range []func(*migrations.Config) (string, error){migrations.StoreSQL, migrations.SQL, migrations.JobsSQL} {
		content, err := text(&migrations.Config{Names: names})
		if err != nil {
			return nil, nil, err
		}
		all = append(all, expectedOf(content, i == 0)...)
	}
	list, err := json.Marshal(all)
	if err != nil {
		return nil, nil, err
	}
	type difference struct{ says, remedy string }
	found, err := pgdriver.QueryAll(ctx, q, func(rows *sql.Rows) (d difference, err error) {
		return d, rows.Scan(&d.says, &d.remedy)
	}, driftSQL, string(list))
	for _, d := range found {
		says, remedies = append(says, d.says), append(remedies, d.remedy)
	}
	return says, remedies, err
}

func (p *patient) drift(ctx context.Context) (finding, error) {
	says, remedies, err := findDrift(ctx, p.db, p.names)
	if err != nil || len(says) == 0 {
		return ok("as the migrations create them"), err
	}
	return warn(list(remedies), "%s", list(says)), nil
}

// triggers finds what may drop a write without an error. Nobody can see from outside which rows a
// trigger drops.
func (p *patient) triggers(ctx context.Context) (finding, error) {
	var names string
	err := p.db.QueryRowContext(ctx, `
SELECT coalesce(string_agg(of, ', ' ORDER BY of), '') FROM (
	SELECT 'trigger ' || quote_ident(tgname) || ' of ' || tgrelid::regclass AS of FROM pg_trigger
	WHERE NOT tgisinternal AND tgenabled IN ('O', 'A') AND tgtype & 3 = 3 AND tgrelid IN (`+oursSQL+`)
	UNION ALL
	SELECT 'rule ' || quote_ident(rulename) || ' of ' || ev_class::regclass FROM pg_rewrite
	WHERE ev_type <> '1' AND is_instead AND ev_enabled IN ('O', 'A') AND ev_class IN (`+oursSQL+`)
) AS found`, p.ours()).Scan(&names)
	if err != nil || names == "" {
		return ok("no BEFORE trigger, and no rule, may drop a write"), err
	}
	return warn("let each BEFORE trigger return NEW, or OLD for a DELETE, or make it an AFTER trigger; DROP RULE", "a row that these drop is lost, or its work is repeated: %s", names), nil
}
