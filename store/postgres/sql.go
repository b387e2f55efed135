package postgres

import (
	"strconv"
	"strings"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// statements are a store's SQL. No text depends on what is read or appended,
// so that a connection prepares each of them once.
type statements struct {
	appendAny, appendNew, appendExact, headVersion string

	read, latest, stream, missing, ranges, ages string

	readSized sizedSQL

	scopedOne, scoped, scopedNear scopedSQLs
}

// scopedSQLs are a scoped read without a bound of bytes, and with one.
type scopedSQLs struct {
	plain string
	sized sizedSQL
}

// newStatements makes the SQL of a store. incarnation is empty, or the
// expression that each read compares with its last parameter: see proof.
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

// proof is a condition that fails with a division by zero unless the server's
// incarnation is the n-th parameter. Zero rows would not do: no events is an
// answer, too. PostgreSQL evaluates it once, before the first row is read, and
// leaves it out of its estimates. It stands in the statement that reads, so
// nothing between the worker and the server can tear the two apart.
func proof(incarnation string, n int) string {
	if incarnation == "" {
		return "true"
	}
	return `(SELECT 1 / count(*) FROM (SELECT 1) AS server WHERE ` + incarnation + ` = $` + strconv.Itoa(n) + `::text) = 1`
}

// Three ways to move an aggregate's head by $3 events: from wherever it is,
// from nothing, from version $15. Each locks the head and returns it, or
// returns nothing if it is elsewhere.
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

// appendSQL draws positions for rows that come out of head, thus with the
// head's lock held: within an aggregate, positions and versions have one
// order. (The default of a column is computed after the ORDER BY of the SELECT
// that feeds the INSERT.) The payloads come as one value and are cut apart
// here: no escaping, and half the bytes of an array's text.
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

// readColumns are eventColumns for a SELECT: an event whose time a time.Time cannot hold is
// read all the same.
var readColumns = strings.Replace(eventColumns, `e.created_at`, pgdriver.Time(`e.created_at`), 1)

// eventColumns are in the order of eventDest.
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

// scopedOneSQL and scopedSQL are written so that the planner takes the index
// (aggregate_type, global_position) and ends early, whatever it believes of the
// table:
//
//   - With "= ANY" instead of "=" only that index has the rows in the order that
//     is asked for.
//   - What comes from a SELECT is not known when the plan is made, and $2 is not
//     among the conditions of the scan: so the planner expects many rows, of
//     which a tenth is needed, and does not collect and sort them all.
const (
	// scopedOneSQL is for one type, $3.
	scopedOneSQL = `SELECT {columns}
  FROM (SELECT * FROM {events} AS e
         WHERE e.aggregate_type = ANY (ARRAY(SELECT $3::text)) AND e.global_position > (SELECT $1::bigint)
         ORDER BY e.aggregate_type, e.global_position
         LIMIT (SELECT $4::bigint)) AS e
 WHERE e.global_position <= $2::bigint AND {proof 5}
 ORDER BY e.aggregate_type, e.global_position`

	// scopedSQL is for the types in the array $3. It finds the first $4
	// positions of each, and of these the first $4, before it reads any event.
	// It looks the events up one by one: the planner expects few elements in an
	// array that it does not know.
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

	// scopedNearSQL is for many types and few positions: it reads all events above $1
	// up to $2. IS TRUE keeps the planner from a join: it hashes the types. (It would
	// compare each event with each element of an array that it does not know.)
	scopedNearSQL = `SELECT {columns}
  FROM {events} AS e
 WHERE e.global_position > $1::bigint AND e.global_position <= $2::bigint
   AND (e.aggregate_type IN (SELECT t.name FROM unnest($3::text[]) AS t (name))) IS TRUE AND {proof 5}
 ORDER BY e.global_position
 LIMIT $4::bigint`
)

// missingSQL answers from one snapshot. Its steps:
//
//   - tally: how many positions have no event. One pass over the primary key,
//     whose cost is that of the events in the range: holes of any width are
//     free.
//   - gap: the first and the last of these. Up to the first hole the n-th event
//     is at $1 + n, and downwards from the last one likewise. Where nothing is
//     missing, nothing of it is executed.
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
