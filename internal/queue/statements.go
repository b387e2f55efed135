package queue

import (
	"strconv"
	"strings"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/tables"
)

// statements is the SQL of a Queue. Lists come as text, of JSON or of arrays.
type statements struct {
	enqueue, enqueueAlike, enqueueOnce, emit, keys, once, await, log string
	find, attempts, counts, logs                                     string
	claim                                                            map[Caps]string // by the caps that are locked
	look, start, late, lock, room, peek                              string
	complete, completeOne, settle, verdict, cancel                   string
	want, unknown, unserved, unadvanced, claimers, expire, retained  string
	retainable, remove, forgettable, forget                          string

	expirable   string
	lost, reset string // what follows the CTE dead
}

// kept are the columns that a finished job takes along, and those of its claim.
const (
	kept = `id, kind, queue, priority, run_at, good_until, args, meta, created_at, attempt, failures, resets, max_attempts, max_resets, cancel_at`
	held = `claimed_by, claim, claimed_at, started_at`
)

// freed is what every end of a run does to a job that is to run again.
const freed = `state = 'available', claim = NULL, claimed_by = NULL, claimed_at = NULL, started_at = NULL`

// mostAttempts bounds the attempts of a job that are kept: one that snoozes may run for ever.
const mostAttempts = 1000

// columns is what scanJob reads.
var columns = `j.id, j.claim, j.kind, j.priority, ` + pgdriver.TimeOrNever(`j.run_at`) + `, j.args, j.meta, j.attempt, j.failures, j.resets, coalesce(j.max_attempts, 0), j.started_at IS NOT NULL, j.cancel_at IS NOT NULL, j.good_until IS NOT NULL`

// ChannelsSQL are SQL expressions for the names of the channels on which new jobs
// and awaited ends are told. A table's oid is its own within the database.
func ChannelsSQL(t tables.Jobs) (news, ends string) {
	oid := `to_regclass(` + ident.Literal(t.Jobs.SQL()) + `)::oid::text`
	return `'worker_jobs_' || ` + oid, `'worker_jobs_ends_' || ` + oid
}

func newStatements(t tables.Jobs) statements {
	news, ends := ChannelsSQL(t)
	names := strings.NewReplacer(
		"{jobs}", t.Jobs.SQL(), "{history}", t.History.SQL(), "{attempts}", t.Attempts.SQL(), "{logs}", t.Logs.SQL(), "{workers}", t.Workers.SQL(),
		"{queues}", t.Queues.SQL(), "{token}", t.Token.SQL(), "{wanted}", t.Wanted.SQL(), "{once}", t.Once.SQL(),
		"{emitted}", t.Emitted.SQL(), "{flow steps}", t.FlowSteps.SQL(), "{flow runs}", t.FlowRuns.SQL(), "{flow sweep}", t.FlowSweep.SQL(), "{through}", t.EmittedThrough.SQL(),
		"{sequence}", ident.Literal(t.Jobs.SQL()), "{news}", news, "{ends}", ends,
		"{kept}", kept, "{held}", held, "{freed}", freed, "{columns}", columns, "{completed}", completed, "{told}", told, "{lane rows}", laneRows, "{lane shape}", laneShape, "{unlocked}", unlocked, "{fence}", fence, "{starts}", starts, "{lives}", lives, "{bounded}", bounded, "{primary}", primary, "{most attempts}", strconv.Itoa(mostAttempts))
	r := func(sql string) string { return names.Replace(names.Replace(sql)) } // fragments have names too
	return statements{
		enqueue: r(enqueueSQL("", "true")), enqueueAlike: r(alikeSQL), enqueueOnce: r(enqueueSQL(onceSQL, passedOnce)), emit: r(enqueueSQL(emitSQL, passedOnce)),
		keys: r(keysSQL), once: r(onceOwnerSQL), await: r(awaitSQL), log: r(logSQL),
		find: r(findSQL), attempts: r(attemptsSQL), counts: r(countsSQL), logs: r(logsSQL),
		claim: map[Caps]string{
			{}: r(claimSQL(uncapped(`name IN ($3::text, '*')`))), {Own: true}: r(claimSQL(uncapped(`name = '*'`))),
			{All: true}: r(claimSQL(uncapped(`name = $3::text`))), {Own: true, All: true}: r(claimSQL("true")),
		},
		look: r(lookSQL), start: r(startSQL), late: r(lateSQL), lock: r(lockSQL), room: r(roomSQL), peek: r(peekSQL),
		complete: r(completeSQL), completeOne: r(completeOneSQL), settle: r(settleSQL), verdict: r(verdictSQL), cancel: r(cancelSQL),
		want: r(wantSQL), unknown: r(unknownSQL), unserved: r(unservedSQL), unadvanced: r(unadvancedSQL), claimers: r(claimersSQL), expire: r(expireSQL), retained: r(retainedSQL),
		retainable: r(retainableSQL), remove: r(removeSQL), forgettable: r(forgettableSQL), forget: r(forgetSQL),
		expirable: r(expirableSQL), lost: r(lostSQL), reset: r(resetSQL),
	}
}

// claimSQL walks the index of each lane up to what it takes. The rows are locked
// when they are updated, so they stay where they are and are named by ctid: a join
// becomes a sequential scan under a generic plan.
//
// The limit is part of the text: with a parameter for it a generic plan is taken for
// a tenth of the queue, so that each claim would be planned again. So is the condition, what
// the user wants of a job.
//
// open is the condition under which the queue may be claimed from: it has no cap but those that
// the transaction has locked. The statement looks itself. The worker's knowledge may be old.
func claimSQL(open string) string {
	return `
WITH lane AS (
	{lane rows}($4::jsonb) {lane shape}
), picked AS MATERIALIZED (
	SELECT j.at, row_number() OVER () AS n
	FROM lane CROSS JOIN LATERAL (
		SELECT ctid AS at FROM {jobs}
		WHERE state = 'available' AND queue = $3::text AND priority = lane.p AND run_at <= statement_timestamp()
			AND (run_at, id) > (lane.at, lane.id)
			AND kind = ANY (ARRAY(SELECT jsonb_array_elements_text($5::jsonb))) AND (good_until IS NULL OR good_until > statement_timestamp()){condition}
		ORDER BY run_at, id LIMIT {limit} FOR UPDATE SKIP LOCKED) AS j
	WHERE EXISTS (SELECT FROM {workers} WHERE worker_id = $1::uuid)
		AND NOT EXISTS (SELECT FROM {queues} WHERE name IN ($3::text, '*') AND paused_at IS NOT NULL)
		AND ` + open + `
	LIMIT {limit}
)
UPDATE {jobs} AS j SET state = 'running', attempt = j.attempt + 1, claimed_by = $1::uuid, claim = $2::bigint, claimed_at = clock_timestamp(),
	started_at = CASE WHEN {starts} THEN clock_timestamp() END,
	unique_key = CASE WHEN NOT (j.until_start AND {starts}) THEN j.unique_key END
WHERE j.ctid = ANY (ARRAY(SELECT at FROM picked))
RETURNING {columns}`
}

// laneRows and laneShape read the lanes of a claim, and where it begins in each. The
// argument stands between them.
const (
	laneRows  = `SELECT p, coalesce(greatest(at, statement_timestamp() - ago * interval '1 microsecond'), '-infinity') AS at, id FROM jsonb_to_recordset`
	laneShape = `AS l(p smallint, at timestamptz, id bigint, ago bigint)`
)

// bounded makes the server end a transaction that falls silent after the statement
// that settles its jobs: the client's connection may have died, and until then nobody else
// can settle the jobs. Elsewhere it changes nothing.
const bounded = `(SELECT set_config('idle_in_transaction_session_timeout', '15000', true)) IS NOT NULL`

// starts is true of the rows that start now. The array is searched from its
// beginning for each row, so it is left out if all start.
const starts = `($7::bigint >= $6::bigint OR j.ctid = ANY (ARRAY(SELECT at FROM picked WHERE n <= $7::bigint)))`

// uncapped is true if none of some queues has a cap. A cap that an operator sets then binds
// the next claim, whatever the worker knows.
func uncapped(queues string) string {
	return `NOT EXISTS (SELECT FROM {queues} WHERE ` + queues + ` AND max_running IS NOT NULL)`
}

// primary is true, and an error on a standby: that may lag behind, and no statement
// may name an unlogged table there. It reads nothing.
const primary = `(SELECT count(*) FROM {token} WHERE false) = 0`

const lookSQL = `
SELECT {columns} FROM {jobs} AS j WHERE j.state = 'running' AND j.queue = $2::text AND j.claimed_by = $1::uuid AND {primary}`

// fence is the condition that a job runs under a claim of the list d. It names
// neither state nor worker: the table ties those to the claim, and with them the
// planner would take the index of the running for tiny, and walk all its dead
// entries. The ids come as an array: a join with the list, for whose length the
// planner takes a hundred, is a sequential scan where there are few jobs, and the
// plan stays when there are many.
const fence = `j.id = ANY (ARRAY(SELECT id FROM d)) AND (j.id, j.claim) IN (SELECT id, claim FROM d)`

// unlocked is the condition that a job runs under a claim of the list d, and that nobody
// has locked its row. It is locked when it is changed, so it stays where it is. One that
// another transaction has changed since the statement began counts as locked.
const unlocked = `j.ctid = ANY (ARRAY(SELECT j.ctid FROM {jobs} AS j WHERE {fence} FOR UPDATE SKIP LOCKED))`

const startSQL = `
WITH d AS MATERIALIZED (SELECT * FROM unnest($1::text::bigint[], $2::text::bigint[]) AS d(id, claim))
UPDATE {jobs} AS j SET started_at = clock_timestamp(), unique_key = CASE WHEN NOT j.until_start THEN j.unique_key END
WHERE {unlocked}
	AND j.started_at IS NULL AND j.cancel_at IS NULL AND (j.good_until IS NULL OR j.good_until > clock_timestamp())
RETURNING j.id`

// lateSQL finds jobs whose time is over.
const lateSQL = `
SELECT id FROM {jobs} WHERE id = ANY ($1::text::bigint[]) AND good_until <= clock_timestamp()`

const completeSQL = `
WITH d AS MATERIALIZED (SELECT * FROM unnest($1::text::bigint[], $2::text::bigint[]) AS d(id, claim)), gone AS (
	DELETE FROM {jobs} AS j WHERE {unlocked} {completed}
RETURNING id`

// completeOneSQL is completeSQL for one run: a list costs the server half as much again.
const completeOneSQL = `
WITH gone AS (
	DELETE FROM {jobs} AS j
	WHERE j.ctid = (SELECT ctid FROM {jobs} WHERE id = $1::bigint AND claim = $2::bigint FOR UPDATE SKIP LOCKED) {completed}`

// completed tells who awaits the jobs that are deleted, and keeps them.
const completed = `
	RETURNING j.*, CASE WHEN j.awaited THEN pg_notify({ends}, j.id::text) END
)
INSERT INTO {history} ({kept}, {held}, state)
SELECT {kept}, {held}, 'completed' FROM gone WHERE {bounded}`

// told tells who awaits the jobs that are gone, and those who want to be told of jobs of the
// queues that jobs have come back to.
const told = `told AS MATERIALIZED (
	SELECT pg_notify({ends}, id::text) FROM gone WHERE awaited
	UNION ALL
	SELECT pg_notify({news}, q.queue) FROM (SELECT DISTINCT queue FROM back) AS q
	WHERE EXISTS (SELECT FROM {wanted} AS w WHERE w.queue = q.queue AND w.until > statement_timestamp())
)`

const settleSQL = `
WITH d AS MATERIALIZED (
	SELECT * FROM jsonb_to_recordset($1::jsonb) AS d(id bigint, claim bigint, "to" text, delay bigint, counts boolean, most int, resets boolean,
		outcome text, code text, error text, result jsonb)
), mine AS MATERIALIZED (
	SELECT j.id, j.claim, j.claimed_by, j.started_at, d.delay, d.counts, coalesce(d.resets, false) AS resets, d.outcome, d.code, d.error, d.result,
		CASE WHEN d."to" <> 'available' THEN d."to"
			WHEN j.cancel_at IS NOT NULL THEN 'cancelled'
			WHEN d.counts AND j.failures + 1 >= coalesce(j.max_attempts, d.most, 15) THEN 'failed'
			WHEN d.resets AND j.resets >= j.max_resets THEN 'failed' END AS final
	FROM {jobs} AS j JOIN d ON d.id = j.id AND d.claim = j.claim
	WHERE j.id = ANY (ARRAY(SELECT id FROM d))
	ORDER BY j.id FOR UPDATE OF j SKIP LOCKED
), gone AS (
	DELETE FROM {jobs} AS j USING mine AS m WHERE j.id = m.id AND m.final IS NOT NULL
	RETURNING j.*, m.final, m.counts, m.code, m.error, m.result
), past AS (
	INSERT INTO {history} ({kept}, {held}, state, code, error, result)
	SELECT id, kind, queue, priority, run_at, good_until, args, meta, created_at, attempt, failures + (counts AND final = 'failed')::int, resets, max_attempts, max_resets, cancel_at,
		{held}, final, code, error, result FROM gone
	RETURNING id, state
), back AS (
	UPDATE {jobs} AS j SET {freed}, failures = j.failures + m.counts::int, resets = j.resets + m.resets::int,
		run_at = CASE WHEN m.delay IS NULL THEN j.run_at ELSE clock_timestamp() + m.delay * interval '1 microsecond' END
	FROM mine AS m WHERE j.id = m.id AND m.final IS NULL
	RETURNING j.id, j.queue, j.attempt, m.claim, m.claimed_by, m.started_at, m.outcome, m.code, m.error
), noted AS (
	INSERT INTO {attempts} (job_id, attempt, claim, worker_id, started_at, outcome, code, error)
	SELECT id, attempt, claim, claimed_by, started_at, coalesce(outcome, 'released'), code, error FROM back
	ON CONFLICT (job_id, attempt) DO NOTHING
), {told}, forgotten AS (
	DELETE FROM {attempts} AS a USING back AS b
	WHERE a.job_id = ANY (ARRAY(SELECT id FROM back WHERE attempt > {most attempts})) AND a.job_id = b.id AND a.attempt = b.attempt - {most attempts}
)
SELECT id, state FROM past WHERE (SELECT count(*) FROM told) >= 0 AND {bounded} UNION ALL SELECT id, 'available' FROM back`

// verdictSQL tells what an earlier statement has made of runs, or that they run still. A
// reset makes nothing of the run that it takes from a worker, also if it ends the job.
const verdictSQL = `
WITH d AS MATERIALIZED (
	SELECT d.id, coalesce(
		(SELECT h.state FROM {history} AS h WHERE h.id = d.id AND h.claim = d.claim AND h.code IS DISTINCT FROM 'WORKER_LOST'),
		(SELECT 'available' FROM {attempts} AS a WHERE a.job_id = d.id AND a.claim = d.claim AND a.outcome <> 'lost' LIMIT 1),
		(SELECT 'running' FROM {jobs} AS j WHERE j.id = d.id AND j.claim = d.claim)) AS state
	FROM unnest($1::text::bigint[], $2::text::bigint[]) AS d(id, claim)
)
SELECT id, state FROM d WHERE {primary} AND state IS NOT NULL`

const cancelSQL = `
WITH target AS MATERIALIZED (
	SELECT id, state FROM {jobs} WHERE id = $1::bigint FOR UPDATE
), gone AS (
	DELETE FROM {jobs} AS j USING target AS t WHERE j.id = t.id AND t.state <> 'running' RETURNING j.*
), past AS (
	INSERT INTO {history} (id, kind, queue, priority, run_at, good_until, args, meta, created_at, attempt, failures, resets, max_attempts, max_resets, cancel_at, state)
	SELECT id, kind, queue, priority, run_at, good_until, args, meta, created_at, attempt, failures, resets, max_attempts, max_resets, clock_timestamp(), 'cancelled' FROM gone
), told AS MATERIALIZED (
	SELECT pg_notify({ends}, id::text) FROM gone WHERE awaited
), asked AS (
	UPDATE {jobs} AS j SET cancel_at = coalesce(j.cancel_at, clock_timestamp()) FROM target AS t WHERE j.id = t.id AND t.state = 'running'
)
SELECT coalesce((SELECT state FROM target), '') WHERE (SELECT count(*) FROM told) >= 0`

// expirableSQL and lostSQL find what lies first in an index, nobody else holds and is not
// set aside. The limit is part of the text, as that of a claim.
const expirableSQL = `
SELECT id FROM {jobs} WHERE state = 'available' AND good_until <= statement_timestamp() AND NOT id = ANY ($1::text::bigint[])
ORDER BY good_until LIMIT {limit} FOR UPDATE SKIP LOCKED`

const lostSQL = `
SELECT j.id FROM {jobs} AS j
WHERE j.state = 'running' AND j.claimed_by = ANY (ARRAY(SELECT worker_id FROM dead)) AND NOT j.id = ANY ({ids}::text::bigint[])
ORDER BY j.id LIMIT {limit} FOR UPDATE OF j SKIP LOCKED`

// expireSQL and resetSQL take those of a list that nobody else holds. The ids come as an
// array: a join with them may become a sequential scan of the backlog.
const expireSQL = `
WITH gone AS (
	DELETE FROM {jobs} WHERE id = ANY (ARRAY(
		SELECT id FROM {jobs} WHERE id = ANY ($1::text::bigint[]) AND state = 'available' AND good_until <= statement_timestamp() FOR UPDATE SKIP LOCKED))
	RETURNING *
), told AS MATERIALIZED (
	SELECT pg_notify({ends}, id::text) FROM gone WHERE awaited
)
INSERT INTO {history} ({kept}, state) SELECT {kept}, 'expired' FROM gone WHERE (SELECT count(*) FROM told) >= 0
RETURNING id`

const resetSQL = `, lost AS MATERIALIZED (
	SELECT j.id, j.claim, j.claimed_by, j.started_at,
		CASE WHEN j.cancel_at IS NOT NULL THEN 'cancelled' WHEN j.started_at IS NOT NULL AND j.resets >= j.max_resets THEN 'failed' END AS final
	FROM {jobs} AS j
	WHERE j.id = ANY ({ids}::text::bigint[]) AND j.state = 'running' AND j.claimed_by = ANY (ARRAY(SELECT worker_id FROM dead))
	ORDER BY j.id FOR UPDATE OF j SKIP LOCKED
), gone AS (
	DELETE FROM {jobs} AS j USING lost AS l WHERE j.id = l.id AND l.final IS NOT NULL RETURNING j.*, l.final
), past AS (
	INSERT INTO {history} ({kept}, {held}, state, code, error)
	SELECT {kept}, {held}, final, 'WORKER_LOST', 'each worker that ran it was lost, ' || resets + 1 || ' times' FROM gone
), back AS (
	UPDATE {jobs} AS j SET {freed}, resets = j.resets + (l.started_at IS NOT NULL)::int,
		run_at = CASE WHEN l.started_at IS NULL THEN j.run_at ELSE clock_timestamp() + random() * 2 ^ least(j.resets, 8) * interval '1 second' END
	FROM lost AS l WHERE j.id = l.id AND l.final IS NULL
	RETURNING j.id, j.queue, j.attempt, l.claim, l.claimed_by, l.started_at
), noted AS (
	INSERT INTO {attempts} (job_id, attempt, claim, worker_id, started_at, outcome, code)
	SELECT id, attempt, claim, claimed_by, started_at, 'lost', 'WORKER_LOST' FROM back
	ON CONFLICT (job_id, attempt) DO NOTHING
), {told}
SELECT (SELECT count(*) FROM back), (SELECT count(*) FROM gone) WHERE (SELECT count(*) FROM told) >= 0`

// lockSQL makes the claims of a capped queue take turns. What they count, they
// count in the next statement: this one's snapshot is older than its lock.
const lockSQL = `
SELECT name, max_running, set_config('idle_in_transaction_session_timeout', '2000', true) || set_config('lock_timeout', '0', true)
FROM {queues} WHERE name IN ('*', $1::text) AND max_running IS NOT NULL ORDER BY name FOR NO KEY UPDATE`

// roomSQL counts up to the caps, of the queue and of all; NULL is no cap.
const roomSQL = `
SELECT greatest(0, least(
	$2::bigint - CASE WHEN $2::bigint IS NOT NULL THEN (SELECT count(*) FROM {jobs} WHERE state = 'running' AND queue = $1::text) END,
	$3::bigint - CASE WHEN $3::bigint IS NOT NULL THEN (SELECT count(*) FROM {jobs} WHERE state = 'running') END))`

// peekSQL tells in how many microseconds the first job is due, negative if it is
// already, NULL if there is none up to $4 microseconds from now; and whether the queue
// has a cap, or is paused. It walks like a claim, and not over all that is due later.
const peekSQL = `
SELECT (
	SELECT (extract(epoch FROM min(greatest(j.run_at, statement_timestamp() - interval '1 day')) - statement_timestamp()) * 1000000)::bigint FROM (
		{lane rows}($2::jsonb) {lane shape}
	) AS lane CROSS JOIN LATERAL (
		SELECT run_at FROM {jobs} WHERE state = 'available' AND queue = $1::text AND priority = lane.p
			AND run_at <= statement_timestamp() + $4::bigint * interval '1 microsecond' AND (run_at, id) > (lane.at, lane.id)
			AND kind = ANY (ARRAY(SELECT jsonb_array_elements_text($3::jsonb))) AND (good_until IS NULL OR good_until > statement_timestamp())
		ORDER BY run_at, id LIMIT 1) AS j
), EXISTS (SELECT FROM {queues} WHERE name IN ($1::text, '*') AND max_running IS NOT NULL),
	EXISTS (SELECT FROM {queues} WHERE name IN ($1::text, '*') AND paused_at IS NOT NULL)`

const wantSQL = `
INSERT INTO {wanted} AS w (queue, until) VALUES ($1::text, statement_timestamp() + interval '30 seconds')
ON CONFLICT (queue) DO UPDATE SET until = excluded.until WHERE w.until < statement_timestamp() + interval '15 seconds'`
