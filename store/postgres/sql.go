package postgres

import (
	"strconv"
	"strings"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

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
	tables := strings.NewReplacer(
		"{events}", events.SQL(), "{heads}", heads.SQL(), "{notify}", notify, "{columns}", readColumns,
		"{proof 1}", proof(incarnation, 1), "{proof 2}", proof(incarnation, 2), "{proof 3}", proof(incarnation, 3), "{proof 5}", proof(incarnation, 5))
	appendTo := func(head string) string {
		return tables.Replace(strings.Replace(appendSQL, "{head}", head, 1))
	}
	bounded := func(text string, n int) sizedSQL {
		if incarnation != "" {
			n++ // its parameter comes first
		}
		form := sized(text, n)
		return sizedSQL{tables.Replace(form.light), tables.Replace(form.exact)}
	}
	scoped := func(text string) scopedSQLs { return scopedSQLs{tables.Replace(text), bounded(text, 5)} }
	return statements{
		readSized:  bounded(readSQL, 3),
		scopedOne:  scoped(scopedOneSQL),
		scoped:     scoped(scopedSQL),
		scopedNear: scoped(scopedNearSQL),

		appendAny:   appendTo(headAny),
		appendNew:   appendTo(headNew),
		appendExact: appendTo(headExact),
		headVersion: tables.Replace(headVersionSQL),
		read:        tables.Replace(readSQL),
		latest:      tables.Replace(latestSQL),
		stream:      tables.Replace(streamSQL),
		missing:     tables.Replace(missingSQL),
		ranges:      tables.Replace(rangesSQL),
		ages:        tables.Replace(agesSQL),
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

// appendSQL draws the positions after it has locked the aggregate's head. Therefore positions and versions of an aggregate have the same order. PostgreSQL computes the
// default of a column after the ORDER BY of the SELECT that feeds the INSERT. All payloads are
// one parameter, which the statement cuts apart. They need no escaping, and half the bytes of
// an array's text.
var appendSQL = `WITH head AS (
    {head}
    RETURNING h.aggregate_version - $3::bigint AS version{notify}
)
INSERT INTO {events} (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, event_version,
       payload, trace_id, correlation_id, causation_id, metadata, created_at)
SELECT $1::text, $2::text, head.version + e.n, e.event_id, e.event_type, e.event_version,
       substring($4::bytea FROM e.start FOR e.length), ` + unmarked(`e.trace_id`) + `, ` + unmarked(`e.correlation_id`) + `, ` + unmarked(`e.causation_id`) + `,
       nullif(e.metadata, '')::jsonb, COALESCE(nullif(e.created_at, '')::timestamptz, clock_timestamp())
  FROM head CROSS JOIN unnest($5::int[], $6::int[], $7::uuid[], $8::text[], $9::int[],
       $10::text[], $11::text[], $12::text[], $13::text[], $14::text[]) WITH ORDINALITY
    AS e (start, length, event_id, event_type, event_version,
       trace_id, correlation_id, causation_id, metadata, created_at, n)
 ORDER BY e.n
RETURNING global_position, aggregate_version, metadata, created_at`

// readColumns is eventColumns for a SELECT. It reads a time outside of time.Time's range as the
// nearer bound.
var readColumns = strings.Replace(eventColumns, `e.created_at`, pgdriver.Time(`e.created_at`), 1)

// eventColumns has the order of eventDest.
const eventColumns = `e.global_position, e.aggregate_version, e.aggregate_type, e.aggregate_id, e.event_type,
       e.event_id, e.event_version, e.payload, e.metadata, e.trace_id, e.correlation_id, e.causation_id, e.created_at`

const (
	readSQL = `SELECT {columns}
  FROM {events} AS e
 WHERE e.global_position > $1::bigint AND {proof 3}
 ORDER BY e.global_position
 LIMIT $2::bigint`

	latestSQL = `SELECT COALESCE((SELECT max(global_position) FROM {events}), 0) WHERE {proof 1}`

	streamSQL = `SELECT {columns}
  FROM {events} AS e
 WHERE e.aggregate_type = $1::text AND e.aggregate_id = $2::text
   AND e.aggregate_version BETWEEN $3::bigint AND $4::bigint
 ORDER BY e.aggregate_version`
)

// scopedOneSQL and scopedSQL make the planner use the index (aggregate_type, global_position)
// and end early, whatever its statistics say:
//
//   - With "= ANY" instead of "=", only this index returns the rows in the required order.
//   - The planner does not know the value of a SELECT, and $2 is not a condition of the scan.
//     So the planner expects many rows, of which a tenth is used. It therefore does not collect
//     and sort all rows.
const (
	// scopedOneSQL reads one type, $3.
	scopedOneSQL = `SELECT {columns}
  FROM (SELECT * FROM {events} AS e
         WHERE e.aggregate_type = ANY (ARRAY(SELECT $3::text)) AND e.global_position > (SELECT $1::bigint)
         ORDER BY e.aggregate_type, e.global_position
         LIMIT (SELECT $4::bigint)) AS e
 WHERE e.global_position <= $2::bigint AND {proof 5}
 ORDER BY e.aggregate_type, e.global_position`

	// scopedSQL reads the types in the array $3. Before it reads any event, it finds the first
	// $4 positions of each type, and the first $4 of these. It reads each event by an index
	// lookup, since the planner expects few elements in an unknown array.
	scopedSQL = `WITH page AS MATERIALIZED (
    SELECT p.global_position
      FROM unnest($3::text[]) AS t (name)
     CROSS JOIN LATERAL (
           SELECT e.global_position
             FROM {events} AS e
            WHERE e.aggregate_type = ANY (ARRAY[t.name]) AND e.global_position > (SELECT $1::bigint)
            ORDER BY e.aggregate_type, e.global_position
            LIMIT (SELECT $4::bigint)) AS p
     WHERE p.global_position <= $2::bigint
     ORDER BY p.global_position
     LIMIT $4::bigint
)
SELECT {columns}
  FROM {events} AS e
 WHERE e.global_position = ANY (ARRAY(SELECT p.global_position FROM page AS p)) AND {proof 5}
 ORDER BY e.global_position`

	// scopedNearSQL reads many types in few positions: it scans all events above $1 up to $2.
	// IS TRUE makes the planner hash the types instead of a join. (Otherwise PostgreSQL would
	// compare each event with each element of the array.)
	scopedNearSQL = `SELECT {columns}
  FROM {events} AS e
 WHERE e.global_position > $1::bigint AND e.global_position <= $2::bigint
   AND (e.aggregate_type IN (SELECT t.name FROM unnest($3::text[]) AS t (name))) IS TRUE AND {proof 5}
 ORDER BY e.global_position
 LIMIT $4::bigint`
)

// missingSQL answers from one snapshot, in two steps:
//
//   - tally counts the positions without an event. It reads the primary key once. Its cost
//     grows with the events in the range, not with the width of the gaps.
//   - gap finds the first and the last of these positions. Up to the first gap, the n-th event
//     is at $1 + n, and likewise downwards from the last gap. If no position is missing, gap is
//     not executed.
const missingSQL = `WITH tally AS MATERIALIZED (
    SELECT $2::bigint - $1::bigint - (
           SELECT count(*) FROM {events} AS e
            WHERE e.global_position > $1::bigint AND e.global_position <= $2::bigint) AS missing
), gap AS MATERIALIZED (
    SELECT (SELECT $1::bigint + e.n
              FROM (SELECT e.global_position, row_number() OVER (ORDER BY e.global_position) AS n
                      FROM {events} AS e
                     WHERE e.global_position > $1::bigint AND e.global_position <= $2::bigint) AS e
             WHERE (SELECT missing FROM tally) > 0 AND e.global_position <> $1::bigint + e.n
             ORDER BY e.global_position
             LIMIT 1) AS first,
           (SELECT $2::bigint + 1 - e.n
              FROM (SELECT e.global_position, row_number() OVER (ORDER BY e.global_position DESC) AS n
                      FROM {events} AS e
                     WHERE e.global_position > $1::bigint AND e.global_position <= $2::bigint) AS e
             WHERE (SELECT missing FROM tally) > 0 AND e.global_position <> $2::bigint + 1 - e.n
             ORDER BY e.global_position DESC
             LIMIT 1) AS last
)
SELECT t.missing, COALESCE(g.first, $2::bigint - t.missing + 1), COALESCE(g.last, $1::bigint + t.missing)
  FROM tally AS t CROSS JOIN gap AS g
 WHERE {proof 3}`
