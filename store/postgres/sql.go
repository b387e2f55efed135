package postgres

import (
	"embed"
	"maps"
	"strconv"
	"strings"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/sqltext"
)

//go:embed sql/*.sql
var files embed.FS

var texts = sqltext.Parse(files)

// statements is the SQL of a store. No text depends on the arguments of a call, so a connection
// prepares each statement once.
type statements struct {
	appendAny, appendNew, appendExact, headVersion string

	read, latest, stream, missing, ranges, ages string

	readSized sizedSQL

	scopedOne, scoped, scopedNear scopedSQLs
}

// scopedSQLs is a scoped read without and with a bound in bytes.
type scopedSQLs struct {
	plain string
	sized sizedSQL
}

// newStatements returns the SQL of a store. incarnation is empty, or the expression that each
// read compares with its last parameter: see proof.
func newStatements(events, heads ident.Table, channel, incarnation string) statements {
	notify := ""
	if channel != "" { // an identifier by now: nothing in it needs escaping
		notify = ", pg_notify('" + channel + "', '')"
	}
	values := sqltext.Values{"events": events.SQL(), "heads": heads.SQL(), "notify": notify, "columns": readColumns}
	for n := 1; n <= 5; n++ {
		values["proof_"+strconv.Itoa(n)] = proof(incarnation, n)
	}
	with := func(name, key, value string) string {
		all := maps.Clone(values)
		all[key] = value
		return texts.Statement(name, all)
	}
	r := func(name string) string { return texts.Statement(name, values) }
	appendTo := func(head string) string { return with("append", "head", texts.Fill(head, values)) }
	bounded := func(name string, n int) sizedSQL {
		if incarnation != "" {
			n++ // its parameter comes first
		}
		return sized(with(name, "columns", "{columns}"), n)
	}
	scoped := func(name string) scopedSQLs { return scopedSQLs{r(name), bounded(name, 5)} }
	return statements{
		readSized: bounded("read", 3), scopedOne: scoped("scoped_one"), scoped: scoped("scoped"), scopedNear: scoped("scoped_near"),
		appendAny: appendTo(headAny), appendNew: appendTo(headNew), appendExact: appendTo(headExact), headVersion: texts.Fill(headVersionSQL, values),
		read: r("read"), latest: texts.Fill(latestSQL, values), stream: r("stream"), missing: r("missing"), ranges: r("ranges"), ages: r("ages"),
	}
}

// proof returns a condition that fails with a division by zero unless the server's incarnation
// is the n-th parameter. A condition that is only false would not do, since no events is a
// valid answer, too. PostgreSQL evaluates the condition once, before it reads the first row,
// and ignores it in its estimates. The condition is part of the reading statement, so the read
// and its proof run on the same server.
func proof(incarnation string, n int) string {
	if incarnation == "" {
		return "true"
	}
	return `(SELECT 1 / count(*) FROM (SELECT 1) AS server WHERE ` + incarnation + ` = $` + strconv.Itoa(n) + `::text) = 1`
}

// Three statements move an aggregate's head by $3 events. headAny moves it from any version,
// headNew from no version, headExact from version $15. Each locks and returns the head. Each
// returns no row if the head is at another version.
const (
	headAny = `INSERT INTO {heads} AS h (aggregate_type, aggregate_id, aggregate_version)
    VALUES ($1::text, $2::text, $3::bigint)
    ON CONFLICT (aggregate_type, aggregate_id)
    DO UPDATE SET aggregate_version = h.aggregate_version + $3::bigint, updated_at = clock_timestamp()`

	headNew = `INSERT INTO {heads} AS h (aggregate_type, aggregate_id, aggregate_version)
    VALUES ($1::text, $2::text, $3::bigint)
    ON CONFLICT (aggregate_type, aggregate_id) DO NOTHING`

	headExact = `UPDATE {heads} AS h
       SET aggregate_version = h.aggregate_version + $3::bigint, updated_at = clock_timestamp()
     WHERE h.aggregate_type = $1::text AND h.aggregate_id = $2::text AND h.aggregate_version = $15::bigint`

	headVersionSQL = `SELECT aggregate_version FROM {heads}
 WHERE aggregate_type = $1::text AND aggregate_id = $2::text`
)

// readColumns is eventColumns for a SELECT. It reads a time outside of time.Time's range as the
// nearer bound.
var readColumns = strings.Replace(eventColumns, `e.created_at`, pgdriver.Time(`e.created_at`), 1)

// eventColumns has the order of eventDest.
const eventColumns = `e.global_position, e.aggregate_version, e.aggregate_type, e.aggregate_id, e.event_type,
       e.event_id, e.event_version, e.payload, e.metadata, e.trace_id, e.correlation_id, e.causation_id, e.created_at`

const latestSQL = `SELECT COALESCE((SELECT max(global_position) FROM {events}), 0) WHERE {proof_1}`
