package queue

import (
	"strconv"
	"strings"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/tables"
)

// statements is the SQL of a Queue. Lists are passed as text, of JSON or of arrays.
type statements struct {
	enqueue, enqueueAlike, enqueueOnce, emit, keys, once, await, log string
	find, attempts, counts, logs                                     string
	claim                                                            map[Caps]string // by the locked caps
	inFlight, start, late, lock, room, peek                          string
	complete, completeOne, settle, verdict, cancel                   string
	want, unknown, unserved, unadvanced, claimers, expire, retained  string
	retainable, remove, forgettable, forget                          string

	expirable   string
	lost, reset string // both follow the CTE dead
}

// kept are the columns that a finished job keeps. held are those of its claim.
const (
	kept = `id, kind, queue, priority, run_at, good_until, args, meta, created_at, attempt, failures, resets, max_attempts, max_resets, cancel_at`
	held = `claimed_by, claim, claimed_at, started_at`
)

// freed is the SET list of every end of a run after which the job is to run again.
const freed = `state = 'available', claim = NULL, claimed_by = NULL, claimed_at = NULL, started_at = NULL`

// maxAttempts bounds the stored attempts of a job, since a job may snooze for ever.
const maxAttempts = 1000

// columns are the columns that scanJob reads.
var columns = `j.id, j.claim, j.kind, j.priority, ` + pgdriver.TimeOrNever(`j.run_at`) + `, j.args, j.meta, j.attempt, j.failures, j.resets, coalesce(j.max_attempts, 0), j.started_at IS NOT NULL, j.cancel_at IS NOT NULL, j.good_until IS NOT NULL`

// ChannelsSQL returns SQL expressions for the channels of new jobs and of awaited ends. The
// name contains the table's oid, which is unique within the database.
func ChannelsSQL(t tables.Jobs) (newJobs, ends string) {
	oid := `to_regclass(` + ident.Literal(t.Jobs.SQL()) + `)::oid::text`
	return `'worker_jobs_' || ` + oid, `'worker_jobs_ends_' || ` + oid
}

func newStatements(t tables.Jobs) statements {
	newJobs, ends := ChannelsSQL(t)
	names := strings.NewReplacer(
		"{jobs}", t.Jobs.SQL(), "{history}", t.History.SQL(), "{attempts}", t.Attempts.SQL(), "{logs}", t.Logs.SQL(), "{workers}", t.Workers.SQL(),
		"{queues}", t.Queues.SQL(), "{token}", t.Token.SQL(), "{wanted}", t.Wanted.SQL(), "{once}", t.Once.SQL(),
		"{emitted}", t.Emitted.SQL(), "{flow steps}", t.FlowSteps.SQL(), "{flow runs}", t.FlowRuns.SQL(), "{flow sweep}", t.FlowSweep.SQL(), "{through}", t.EmittedThrough.SQL(),
		"{sequence}", ident.Literal(t.Jobs.SQL()), "{news}", newJobs, "{ends}", ends,
		"{kept}", kept, "{held}", held, "{freed}", freed, "{columns}", columns, "{completed}", completed, "{told}", notified, "{lane rows}", laneRows, "{lane shape}", laneShape, "{unlocked}", unlocked, "{fence}", fence, "{starts}", starts, "{lives}", lives, "{bounded}", bounded, "{primary}", primary, "{most attempts}", strconv.Itoa(maxAttempts))
	r := func(sql string) string { return names.Replace(names.Replace(sql)) } // twice, since fragments contain names, too
	return statements{
		enqueue: r(enqueueSQL("", "true")), enqueueAlike: r(alikeSQL), enqueueOnce: r(enqueueSQL(onceSQL, passedOnce)), emit: r(enqueueSQL(emitSQL, passedOnce)),
		keys: r(keysSQL), once: r(onceOwnerSQL), await: r(awaitSQL), log: r(logSQL),
		find: r(findSQL), attempts: r(attemptsSQL), counts: r(countsSQL), logs: r(logsSQL),
		claim: map[Caps]string{
			{}: r(claimSQL(uncapped(`name IN ($3::text, '*')`))), {Own: true}: r(claimSQL(uncapped(`name = '*'`))),
			{All: true}: r(claimSQL(uncapped(`name = $3::text`))), {Own: true, All: true}: r(claimSQL("true")),
		},
		inFlight: r(inFlightSQL), start: r(startSQL), late: r(lateSQL), lock: r(lockSQL), room: r(roomSQL), peek: r(peekSQL),
		complete: r(completeSQL), completeOne: r(completeOneSQL), settle: r(settleSQL), verdict: r(verdictSQL), cancel: r(cancelSQL),
		want: r(wantSQL), unknown: r(unknownSQL), unserved: r(unservedSQL), unadvanced: r(unadvancedSQL), claimers: r(claimersSQL), expire: r(expireSQL), retained: r(retainedSQL),
		retainable: r(retainableSQL), remove: r(removeSQL), forgettable: r(forgettableSQL), forget: r(forgetSQL),
		expirable: r(expirableSQL), lost: r(lostSQL), reset: r(resetSQL),
	}
}

// claimSQL walks the index of each lane as far as it claims. It names the rows by ctid, since a
// join becomes a sequential scan under a generic plan. The UPDATE locks the rows, so their
// ctids stay valid.
//
// The limit is part of the text. With a parameter for the limit, a generic plan expects a tenth
// of the queue. Then each claim would be planned again. The user's condition is part of the
// text, too.
//
// open is the condition of a claim: the transaction has locked every cap of the queue. The
// statement itself checks the caps, since the worker's knowledge may be out of date.
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

// laneRows and laneShape read the lanes of a claim, and the position from which it reads in
// each. The argument is placed between them.
const (
	laneRows  = `SELECT p, coalesce(greatest(at, statement_timestamp() - ago * interval '1 microsecond'), '-infinity') AS at, id FROM jsonb_to_recordset`
	laneShape = `AS l(p smallint, at timestamptz, id bigint, ago bigint)`
)

// bounded makes the server end a transaction that is idle after the statement that settles its
// jobs. The client's connection may be dead, and until then no other session can settle the
// jobs. It has no effect outside of a transaction.
const bounded = `(SELECT set_config('idle_in_transaction_session_timeout', '15000', true)) IS NOT NULL`

// starts is true for the rows that start now. PostgreSQL searches the array from its beginning
// for each row, so the search is skipped if all start.
const starts = `($7::bigint >= $6::bigint OR j.ctid = ANY (ARRAY(SELECT at FROM picked WHERE n <= $7::bigint)))`

// uncapped returns a condition: none of the queues has a cap. So a cap that an operator sets
// applies to the next claim, whatever the worker knows.
func uncapped(queues string) string {
	return `NOT EXISTS (SELECT FROM {queues} WHERE ` + queues + ` AND max_running IS NOT NULL)`
}

// primary is true on a primary, and an error on a standby, where no statement may read an
// unlogged table. A standby may lag behind. The expression reads no rows.
const primary = `(SELECT count(*) FROM {token} WHERE false) = 0`

const inFlightSQL = `
SELECT {columns} FROM {jobs} AS j WHERE j.state = 'running' AND j.queue = $2::text AND j.claimed_by = $1::uuid AND {primary}`

// fence is the condition that a job runs under a claim of the list d. It names neither state
// nor worker, since the table ties both to the claim. With them, the planner would choose the
// index of running jobs, which it believes to be small. A scan of that index would visit all
// its dead entries. The ids are an array, since the planner expects a hundred rows of a join
// with the list. It would choose a sequential scan while there are few jobs, and keep that plan
// when there are many.
const fence = `j.id = ANY (ARRAY(SELECT id FROM d)) AND (j.id, j.claim) IN (SELECT id, claim FROM d)`

// unlocked is the condition that a job runs under a claim of the list d and that its row is not
// locked. The condition locks the row, so that its ctid stays valid. A row that another
// transaction has changed since the statement began counts as locked.
const unlocked = `j.ctid = ANY (ARRAY(SELECT j.ctid FROM {jobs} AS j WHERE {fence} FOR UPDATE SKIP LOCKED))`

const startSQL = `
WITH d AS MATERIALIZED (SELECT * FROM unnest($1::text::bigint[], $2::text::bigint[]) AS d(id, claim))
UPDATE {jobs} AS j SET started_at = clock_timestamp(), unique_key = CASE WHEN NOT j.until_start THEN j.unique_key END
WHERE {unlocked}
	AND j.started_at IS NULL AND j.cancel_at IS NULL AND (j.good_until IS NULL OR j.good_until > clock_timestamp())
RETURNING j.id`

// lateSQL selects jobs that are past their good_until.
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

// completed notifies the processes that await the deleted jobs, and inserts the jobs into the
// history.
const completed = `
	RETURNING j.*, CASE WHEN j.awaited THEN pg_notify({ends}, j.id::text) END
)
INSERT INTO {history} ({kept}, {held}, state)
SELECT {kept}, {held}, 'completed' FROM gone WHERE {bounded}`

// notified notifies the processes that await the ended jobs. It also notifies the processes that
// wait for jobs of the queues to which jobs return.
const notified = `told AS MATERIALIZED (
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

// verdictSQL selects the outcome that an earlier statement stored for each run, or that the run
// is still running. A reset stores no outcome for the run that it takes from a worker, also if
// it ends the job.
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

// expirableSQL and lostSQL select the first rows of an index that are neither locked nor set
// aside. The limit is part of the text, as in a claim.
const expirableSQL = `
SELECT id FROM {jobs} WHERE state = 'available' AND good_until <= statement_timestamp() AND NOT id = ANY ($1::text::bigint[])
ORDER BY good_until LIMIT {limit} FOR UPDATE SKIP LOCKED`

const lostSQL = `
SELECT j.id FROM {jobs} AS j
WHERE j.state = 'running' AND j.claimed_by = ANY (ARRAY(SELECT worker_id FROM dead)) AND NOT j.id = ANY ({ids}::text::bigint[])
ORDER BY j.id LIMIT {limit} FOR UPDATE OF j SKIP LOCKED`

// expireSQL and resetSQL change the rows of a list that are not locked. The ids are an array: a
// join with them may become a sequential scan of the backlog.
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

// lockSQL serializes the claims of a capped queue. The jobs are counted in the next statement,
// since the snapshot of this one is older than its lock.
const lockSQL = `
SELECT name, max_running, set_config('idle_in_transaction_session_timeout', '2000', true) || set_config('lock_timeout', '0', true)
FROM {queues} WHERE name IN ('*', $1::text) AND max_running IS NOT NULL ORDER BY name FOR NO KEY UPDATE`

// roomSQL counts up to the caps of the queue and of all queues; NULL means no cap.
const roomSQL = `
SELECT greatest(0, least(
	$2::bigint - CASE WHEN $2::bigint IS NOT NULL THEN (SELECT count(*) FROM {jobs} WHERE state = 'running' AND queue = $1::text) END,
	$3::bigint - CASE WHEN $3::bigint IS NOT NULL THEN (SELECT count(*) FROM {jobs} WHERE state = 'running') END))`

// peekSQL selects in how many microseconds the first job is due. The value is negative if the
// job is already due. It is NULL if no job is due up to $4 microseconds from now. It also
// selects whether the queue has a cap, or is paused. It walks the lanes like a claim, and skips
// jobs that are due later.
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
