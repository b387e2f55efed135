package table

import (
	"fmt"
	"strings"
	"time"

	"github.com/pgfrontier/worker/internal/batch"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// statements is the SQL about a table of jobs. Lists are sent as text, of JSON or of arrays: every
// driver supports text in every mode.
//
// No statement waits for the lock of a row. A statement passes over locked rows and reports them.
// So a transaction that holds one row, such as a handler's, does not delay heartbeats of other
// rows. And no two statements wait for each other.
//
// The locks are FOR NO KEY UPDATE. A handler may write a row that refers to a job by a foreign key.
// That row takes a lock on the job which FOR UPDATE would pass over.
type statements struct {
	claim, claimOf, peek                  claimText
	read                                  string
	beat, settle, releaseOrphans          string
	stalled, reset                        string
	log, relog                            string
	requeue                               string
	count, exists, longest                string
	tryCondition, tryOrder, tryExpression string // for EXPLAIN
}

// claimText is the text of a claim around its condition and its limit.
type claimText struct{ head, middle, tail string }

func (c claimText) with(condition string, limit int) string {
	if condition != "" {
		condition = " AND (\n" + condition + "\n)"
	}
	return c.head + condition + c.middle + fmt.Sprint(limit) + c.tail
}

// claimParameters is how many parameters a claim has before the parameters of a condition.
const claimParameters = 2

// listed is the list of runs, from arrays. A claim is the microsecond of started_at.
const listed = `d AS MATERIALIZED (
	SELECT id, claim, 'epoch'::timestamptz + claim * interval '1 microsecond' AS started
	FROM unnest($1::text::bigint[], $2::text::bigint[]) AS d(id, claim)
)`

// fence is the condition that the row still has the claim of an entry of the list d. The IDs come
// as an array too, since a join with the list alone may become a sequential scan.
const fence = `t.{id} = ANY (ARRAY(SELECT id FROM d)) AND t.{id} = d.id AND t.{started_at} = d.started AND t.{worker_hostname} = $3::text`

// fenceOne is the fence for one run. The statement may wait for the row, since the handler of the
// run waits for the statement.
const fenceOne = `t.{id} = $1::bigint AND t.{started_at} = 'epoch'::timestamptz + $2::bigint * interval '1 microsecond'
	AND t.{worker_hostname} = $3::text AND t.{state} = 'processing'`

// due is the condition that a row may be claimed. The first part is the condition of the index. The
// rest is a CASE, for the planner. Without statistics, the planner estimates a CASE as true for
// every other row. So the planner reads the index in its order instead of sorting a number of rows
// that it expects to be small.
//
// A finished_at in the future was written before the server's clock was set back. The limit of a
// minute is longer than a statement's clock may lag.
func (s settings) due() string {
	if s.retryAfter == 0 {
		return `{alias}.{state} = 'queued'
		AND CASE WHEN {alias}.{cancel} THEN true ELSE {alias}.{process_after} IS NULL OR {alias}.{process_after} <= statement_timestamp() END`
	}
	return `{alias}.{state} IN ('queued', 'errored')
		AND CASE WHEN {alias}.{cancel} THEN true
			WHEN {alias}.{state} = 'queued' THEN {alias}.{process_after} IS NULL OR {alias}.{process_after} <= statement_timestamp()
			ELSE {alias}.{finished_at} IS NULL OR {alias}.{finished_at} <= statement_timestamp() - ` + interval(s.retryAfter.Microseconds()) + `
				OR {alias}.{finished_at} > statement_timestamp() + ` + interval(time.Minute.Microseconds()) + ` END`
}

// interval returns an SQL interval as a product. Until PostgreSQL 14 the number in an interval's
// text has less range.
func interval(microseconds int64) string {
	return fmt.Sprintf("%d * interval '1 microsecond'", microseconds)
}

// claimSQL claims the first rows. The rows are locked when they are updated. The limit is part of
// the text. With a parameter for the limit, a generic plan is made for a tenth of the table.
//
// A row that was cancelled before it began ends here. A row that a trigger leaves unchanged has no
// state in the answer.
const claimSQL = `
WITH picked AS MATERIALIZED (
	SELECT {alias}.{id} AS id FROM {table} AS {alias}
	WHERE {due} AND {which}{condition}`

// These say whether a claim leaves out the rows of its list, or covers only these rows.
const (
	notListed  = `NOT {alias}.{id} = ANY ($1::text::bigint[])`
	onlyListed = `{alias}.{id} = ANY ($1::text::bigint[])`
)

const claimOrderSQL = `
	ORDER BY {order}
	LIMIT `

const claimedSQL = `
	FOR NO KEY UPDATE SKIP LOCKED
), claimed AS (
	UPDATE {table} AS t SET
	{state} = CASE WHEN t.{cancel} THEN 'canceled'::{state type} ELSE 'processing'::{state type} END,
	{started_at} = CASE WHEN t.{cancel} THEN t.{started_at} ELSE clock_timestamp() END,
	{finished_at} = CASE WHEN t.{cancel} THEN clock_timestamp() END,
	{failure_message} = CASE WHEN t.{cancel} THEN t.{failure_message} END,
	{execution_logs} = CASE WHEN t.{cancel} THEN t.{execution_logs} END,
	{worker_hostname} = CASE WHEN t.{cancel} THEN t.{worker_hostname} ELSE $2::text END,
	{last_heartbeat_at} = clock_timestamp()
	WHERE t.{id} = ANY (ARRAY(SELECT id FROM picked))
	RETURNING t.{id} AS id, coalesce({started}, 0) AS claim, t.{state}::text AS state, coalesce(t.{num_failures}, 0) AS failures, coalesce(t.{num_resets}, 0) AS resets
)
SELECT id, claim, state, failures, resets, {server} FROM claimed
UNION ALL SELECT id, 0, '', 0, 0, 0 FROM picked WHERE id NOT IN (SELECT id FROM claimed)`

// peekedSQL returns the rows that a claim would find, and claims nothing. It has the parameters of
// a claim.
const peekedSQL = `
	FOR NO KEY UPDATE SKIP LOCKED
)
SELECT id FROM picked WHERE $2::text IS NOT NULL`

const readSQL = `
SELECT {view alias}.{id}, {expressions}
FROM {view} AS {view alias} WHERE {view alias}.{id} = ANY ($1::text::bigint[])`

// beatSQL writes heartbeats. It returns the rows that still have their claim, including locked
// rows. For each row it returns whether it was cancelled, and whether a trigger leaves it
// unchanged. It writes nothing into the rows of the last list.
const beatSQL = `
WITH ` + listed + `, seen AS MATERIALIZED (
	SELECT t.{id} AS id, d.claim, coalesce(t.{cancel}, false) AS cancel FROM {table} AS t, d WHERE ` + fence + ` AND t.{state} = 'processing'
), mine AS MATERIALIZED (
	SELECT t.{id} AS id FROM {table} AS t, d WHERE NOT t.{id} = ANY ($4::text::bigint[]) AND ` + fence + ` AND t.{state} = 'processing' FOR NO KEY UPDATE OF t SKIP LOCKED
), beat AS (
	UPDATE {table} AS t SET {last_heartbeat_at} = clock_timestamp() WHERE t.{id} = ANY (ARRAY(SELECT id FROM mine)) RETURNING t.{id} AS id
)
SELECT id, claim, cancel, id IN (SELECT id FROM mine) AND id NOT IN (SELECT id FROM beat) FROM seen`

// settleSQL stores the outcomes of runs. A row with the claim that has left processing was settled
// before, by a lost answer of this statement or by CompleteTx. Such a row is returned with its
// state. A locked row is returned without a state. A row that a trigger leaves unchanged is
// returned as unchanged. A row that is not returned was lost.
//
// A hidden row waits for as long again as it has waited since it was queued.
const settleSQL = `
WITH d AS MATERIALIZED (
	SELECT d.*, 'epoch'::timestamptz + d.claim * interval '1 microsecond' AS started
	FROM jsonb_to_recordset($1::jsonb) AS d(id bigint, claim bigint, "to" text, message text, delay bigint, requeued boolean)
), seen AS MATERIALIZED (
	SELECT t.{id} AS id, d.claim FROM {table} AS t, d WHERE ` + settleFence + `
), mine AS MATERIALIZED (
	SELECT t.{id} AS id, d.claim, t.{state}::text AS was, d.message, d.delay, d.requeued, d."to" = 'hidden' AS hidden,
		CASE WHEN d."to" = 'completed' THEN d."to"
			WHEN t.{cancel} OR d."to" = 'canceled' THEN 'canceled'
			WHEN d."to" = 'errored' AND coalesce(t.{num_failures}, 0) + 1 >= {most} THEN 'failed'
			WHEN d."to" = 'hidden' THEN 'queued'
			ELSE d."to" END AS final
	FROM {table} AS t, d WHERE ` + settleFence + ` FOR NO KEY UPDATE OF t SKIP LOCKED
), settled AS (
	UPDATE {table} AS t SET
		{state} = m.final::{state type},
		{failure_message} = m.message::{message type},
		{num_failures} = coalesce(t.{num_failures}, 0) + (m.final IN ('errored', 'failed'))::int,
		{started_at} = CASE WHEN m.final <> 'queued' THEN t.{started_at} END,
		{finished_at} = CASE WHEN m.final <> 'queued' THEN clock_timestamp() END,
		{queued_at} = CASE WHEN m.final = 'queued' AND m.requeued THEN clock_timestamp() ELSE t.{queued_at} END,
		{process_after} = CASE WHEN m.final <> 'queued' THEN t.{process_after}
			WHEN m.hidden THEN clock_timestamp() + (statement_timestamp() - greatest(least(t.{queued_at}, statement_timestamp() - interval '10 seconds'), statement_timestamp() - interval '1 hour'))
			WHEN m.delay IS NOT NULL THEN clock_timestamp() + m.delay * interval '1 microsecond'
			ELSE t.{process_after} END
	FROM mine AS m WHERE t.{id} = ANY (ARRAY(SELECT id FROM mine)) AND t.{id} = m.id AND m.was = 'processing'
	RETURNING t.{id} AS id, m.claim, t.{state}::text AS state
)
SELECT id, claim, state FROM settled
UNION ALL SELECT id, claim, CASE WHEN was = 'processing' THEN 'unchanged' ELSE was END FROM mine WHERE id NOT IN (SELECT id FROM settled)
UNION ALL SELECT id, claim, '' FROM seen WHERE id NOT IN (SELECT id FROM mine)`

const settleFence = `t.{id} = ANY (ARRAY(SELECT id FROM d)) AND t.{id} = d.id AND t.{started_at} = d.started AND t.{worker_hostname} = $2::text`

// releaseOrphansSQL queues rows again that this worker has claimed without an answer.
const releaseOrphansSQL = `
WITH mine AS MATERIALIZED (
	SELECT t.{id} AS id FROM {table} AS t
	WHERE t.{state} = 'processing' AND t.{worker_hostname} = $2::text AND NOT t.{id} = ANY ($1::text::bigint[])
	FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE {table} AS t SET {state} = 'queued', {started_at} = NULL
WHERE t.{id} = ANY (ARRAY(SELECT id FROM mine))
RETURNING t.{id}`

// heartbeat is an expression for when a row last showed that its worker lives. The value is NULL
// without such a time, or if the time is infinite. The value may lie in the future, if the server's
// clock was set back.
const heartbeat = `CASE WHEN isfinite(coalesce(t.{last_heartbeat_at}, t.{started_at})) THEN coalesce(t.{last_heartbeat_at}, t.{started_at}) END`

// silent is the condition that a heartbeat is older than an interval or lies in the future. The age
// of a heartbeat in the future is unknown, so the watch checks whether another heartbeat comes.
func silent(than string) string {
	return `NOT coalesce(` + heartbeat + `, '-infinity') BETWEEN clock_timestamp() - ` + than + ` AND clock_timestamp()`
}

// stalledSQL finds rows whose heartbeat is older than half of StalledMaxAge. The table may refuse
// to reset some of these rows.
func stalledSQL(half string) string {
	return `
SELECT t.{id}, ` + pgdriver.Microseconds(heartbeat) + ` FROM {table} AS t
WHERE t.{state} = 'processing' AND ` + silent(half) + `
ORDER BY t.{id} LIMIT ` + fmt.Sprint(1000+batch.MostRefused)
}

// resetSQL resets the rows of the list whose heartbeat has not changed. A job that kills workers
// and its neighbours get different delays. Otherwise the neighbours would count as many resets as
// the killer. A row that a trigger leaves unchanged has no state in the answer.
func resetSQL(age string) string {
	return `
WITH d AS MATERIALIZED (
	SELECT * FROM unnest($1::text::bigint[], $2::text::bigint[]) AS d(id, heartbeat)
), stalled AS MATERIALIZED (
	SELECT t.{id} AS id, ` + pgdriver.Age(heartbeat) + ` AS age,
		CASE WHEN t.{cancel} THEN 'canceled' WHEN coalesce(t.{num_resets}, 0) >= {resets} THEN 'failed' ELSE 'queued' END AS final
	FROM {table} AS t, d
	WHERE t.{id} = ANY (ARRAY(SELECT id FROM d)) AND t.{id} = d.id AND t.{state} = 'processing'
		AND ` + pgdriver.Microseconds(heartbeat) + ` IS NOT DISTINCT FROM d.heartbeat AND ` + silent(age) + `
	FOR NO KEY UPDATE OF t SKIP LOCKED
), reset AS (
	UPDATE {table} AS t SET
	{state} = s.final::{state type},
	{failure_message} = CASE WHEN s.final = 'failed' THEN {reset message}::{message type} END,
	{num_resets} = coalesce(t.{num_resets}, 0) + (s.final = 'queued')::int,
	{started_at} = CASE WHEN s.final <> 'queued' THEN t.{started_at} END,
	{finished_at} = CASE WHEN s.final <> 'queued' THEN clock_timestamp() END,
	{queued_at} = CASE WHEN s.final = 'queued' THEN clock_timestamp() ELSE t.{queued_at} END,
	{process_after} = CASE WHEN s.final = 'queued' THEN clock_timestamp() + random() * 2 ^ least(coalesce(t.{num_resets}, 0), 8) * interval '1 second' ELSE t.{process_after} END
	FROM stalled AS s WHERE t.{id} = ANY (ARRAY(SELECT id FROM stalled)) AND t.{id} = s.id
	RETURNING t.{id} AS id, t.{state}::text AS state, coalesce(s.age, 0) AS age
)
SELECT id, state, age FROM reset
UNION ALL SELECT id, '', 0 FROM stalled WHERE id NOT IN (SELECT id FROM reset)`
}

const logSQL = `
UPDATE {table} AS t SET {execution_logs} = coalesce(t.{execution_logs}, '{}') || ARRAY[$4::text::{log type}]
WHERE ` + fenceOne + `
RETURNING cardinality(t.{execution_logs})`

// relogSQL distinguishes a lost run from a missing entry.
const relogSQL = `
WITH mine AS MATERIALIZED (
	SELECT t.{id} AS id, coalesce(cardinality(t.{execution_logs}), 0) AS entries FROM {table} AS t WHERE ` + fenceOne + ` FOR NO KEY UPDATE
), changed AS (
	UPDATE {table} AS t SET {execution_logs}[$5::int] = $4::text::{log type}
	FROM mine AS m WHERE t.{id} = m.id AND $5::int BETWEEN 1 AND m.entries
)
SELECT entries FROM mine`

// requeueSQL distinguishes a missing row, a locked row, and a row that a trigger leaves unchanged.
const requeueSQL = `
WITH mine AS MATERIALIZED (
	SELECT t.{id} AS id FROM {table} AS t WHERE t.{id} = $1::bigint FOR NO KEY UPDATE SKIP LOCKED
), requeued AS (
	UPDATE {table} AS t SET {state} = 'queued', {queued_at} = clock_timestamp(), {started_at} = NULL, {finished_at} = NULL,
		{process_after} = $2::timestamptz, {cancel} = false
	WHERE t.{id} = ANY (ARRAY(SELECT id FROM mine))
	RETURNING t.{id} AS id
)
SELECT EXISTS (SELECT FROM mine), EXISTS (SELECT FROM requeued) FROM {table} AS t WHERE t.{id} = $1::bigint`

const countSQL = `SELECT count(*) FROM {table} AS {alias} WHERE {alias}.{state} = ANY ($1::text::{state type}[]){condition}`

const existsSQL = `SELECT EXISTS (SELECT FROM {table} AS {alias} WHERE {alias}.{state} = ANY ($1::text::{state type}[]){condition})`

// longestSQL returns how long the row has been due that has been due for longest.
var longestSQL = `
SELECT coalesce(max(` + pgdriver.Age(`d.due`) + `), 0) FROM (
	SELECT greatest({alias}.{queued_at}, {alias}.{process_after}) AS due FROM {table} AS {alias} WHERE {alias}.{state} = 'queued'{condition}
	UNION ALL
	SELECT coalesce(` + pgdriver.Time(`{alias}.{finished_at}`) + ` + {retry after}, {alias}.{queued_at}) FROM {table} AS {alias} WHERE {alias}.{state} = 'errored' AND {retries}{condition}
) AS d WHERE isfinite(d.due) AND d.due <= statement_timestamp()`

// newStatements makes the SQL of a table with these column types.
func newStatements(s settings, t types) statements {
	condition := ""
	if s.condition != "" {
		condition = " AND (\n" + s.condition + "\n)"
	}
	alias := ident.Quote(s.table.alias)
	order := alias + "." + ident.Quote(s.columns["id"])
	if s.order != "" {
		order = s.order + "\n"
	}
	pairs := []string{
		"{table}", s.table.SQL(), "{alias}", alias, "{view}", s.view.SQL(), "{view alias}", ident.Quote(s.view.alias),
		"{condition}", condition, "{order}", order, "{expressions}", strings.Join(s.expressions, "\n, ") + "\n",
		"{server}", serverSQL, "{state type}", t.state, "{message type}", t.message, "{log type}", t.log,
		"{most}", fmt.Sprint(s.most), "{resets}", fmt.Sprint(s.resets), "{reset message}", ident.Literal(s.resetMessage),
		"{retry after}", interval(s.retryAfter.Microseconds()), "{retries}", fmt.Sprint(s.retryAfter > 0),
	}
	for name, actual := range s.columns {
		pairs = append(pairs, "{"+name+"}", ident.Quote(actual))
	}
	names := strings.NewReplacer(pairs...) // in one pass, so that expressions of users stay unchanged
	r := func(sql string) string { return names.Replace(sql) }
	claim := func(which, then string) claimText {
		parts := strings.NewReplacer("{due}", s.due(), "{which}", which, "{started}", pgdriver.Microseconds("t.{started_at}"))
		return claimText{r(parts.Replace(claimSQL)), r(claimOrderSQL), r(parts.Replace(then))}
	}
	return statements{
		claim: claim(notListed, claimedSQL), claimOf: claim(onlyListed, claimedSQL), peek: claim(notListed, peekedSQL),
		read: r(readSQL), beat: r(beatSQL), settle: r(settleSQL), releaseOrphans: r(releaseOrphansSQL),
		stalled: r(stalledSQL(interval(s.stalled.Microseconds() / 2))), reset: r(resetSQL(interval(s.stalled.Microseconds()))),
		log: r(logSQL), relog: r(relogSQL), requeue: r(requeueSQL),
		count: r(countSQL), exists: r(existsSQL), longest: r(longestSQL),
		tryCondition:  r(`SELECT FROM {table} AS {alias} WHERE true{condition}`),
		tryOrder:      r(`SELECT FROM {table} AS {alias} ORDER BY {order}`),
		tryExpression: r(`SELECT {expressions} FROM {view} AS {view alias}`),
	}
}
