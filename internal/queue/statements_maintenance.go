package queue

import (
	"strings"

	"github.com/pgfrontier/worker/internal/liveness"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/tables"
)

// unknownSQL selects kinds of due jobs for which a worker has no code, among the first
// thousand. It walks from lane to lane, and skips jobs that are due later.
const unknownSQL = `
SELECT kind FROM (
	SELECT j.kind FROM generate_series(1, 9) AS p CROSS JOIN LATERAL (
		SELECT kind FROM {jobs} WHERE state = 'available' AND queue = $1::text AND priority = p::smallint AND run_at <= statement_timestamp()
		ORDER BY run_at, id LIMIT 1000) AS j
	LIMIT 1000) AS first
WHERE kind <> ALL (ARRAY(SELECT jsonb_array_elements_text($2::jsonb)))
GROUP BY kind ORDER BY kind LIMIT 10`

// unservedSQL selects queues that have due jobs but no living worker that claims from them. A worker
// whose status does not list queues may claim from any. A worker without kinds claims from none.
const unservedSQL = `
WITH RECURSIVE waits AS (
	(SELECT queue FROM {jobs} WHERE state = 'available' ORDER BY queue LIMIT 1)
	UNION ALL
	SELECT next.queue FROM waits AS w CROSS JOIN LATERAL (SELECT queue FROM {jobs} WHERE state = 'available' AND queue > w.queue ORDER BY queue LIMIT 1) AS next
)
SELECT w.queue FROM waits AS w
WHERE NOT EXISTS (SELECT FROM {workers} AS o WHERE coalesce(cardinality(o.kinds), 1) > 0 AND {lives}
		AND (jsonb_typeof(o.status->'Queues') IS DISTINCT FROM 'array' OR o.status->'Queues' @> jsonb_build_array(jsonb_build_object('Name', w.queue))))
	AND NOT EXISTS (SELECT FROM {queues} WHERE name IN (w.queue, '*') AND paused_at IS NOT NULL)
	AND EXISTS (SELECT FROM generate_series(1, 9) AS p CROSS JOIN LATERAL (
		SELECT FROM {jobs} WHERE state = 'available' AND queue = w.queue AND priority = p::smallint AND run_at <= statement_timestamp() ORDER BY run_at, id LIMIT 1) AS j)
LIMIT 100`

// lives is true if the last heartbeat of worker o is not older than its HeartbeatTimeout, by
// default 30 seconds.
var lives = `o.heartbeat_at > clock_timestamp() - ` + liveness.TimeoutSQL("o", "interval '30 seconds'")

// flowsSQL selects whether this role may read the columns of unadvancedSQL.
const flowsSQL = `
SELECT coalesce(has_column_privilege(to_regclass($1::text), 'finished_at', 'SELECT') AND has_column_privilege(to_regclass($2::text), 'next_at', 'SELECT'), false)`

// unadvancedSQL selects whether some runs of flows have not ended but no worker advances them. A
// worker that advances flows sweeps once a second, or after the pause that the last sweep stored.
const unadvancedSQL = `
SELECT EXISTS (SELECT FROM {flow runs} WHERE finished_at IS NULL) AND coalesce((SELECT next_at FROM {flow sweep}) < statement_timestamp() - interval '1 minute', true)`

// claimersSQL selects the workers that have running jobs but no row. It finds each worker by
// one index lookup.
const claimersSQL = `
WITH RECURSIVE claimer AS (
	(SELECT queue, claimed_by FROM {jobs} WHERE state = 'running' ORDER BY queue, claimed_by LIMIT 1)
	UNION ALL
	SELECT next.* FROM claimer AS c CROSS JOIN LATERAL (
		SELECT queue, claimed_by FROM {jobs} WHERE state = 'running' AND (queue, claimed_by) > (c.queue, c.claimed_by)
		ORDER BY queue, claimed_by LIMIT 1) AS next
)
SELECT DISTINCT claimed_by::text FROM claimer WHERE claimed_by NOT IN (SELECT worker_id FROM {workers})`

// retainedSQL selects the queues with finished jobs. It finds each queue by one index lookup.
const retainedSQL = `
WITH RECURSIVE q AS (
	(SELECT queue FROM {history} ORDER BY queue LIMIT 1)
	UNION ALL
	SELECT next.queue FROM q CROSS JOIN LATERAL (SELECT queue FROM {history} WHERE queue > q.queue ORDER BY queue LIMIT 1) AS next
)
SELECT queue FROM q`

// retainableSQL selects the jobs of queue $2 that are older than the retention. The queue's
// retention comes first, then that of all queues, then $1 microseconds. NULL means for ever. It
// begins after the job $4, which finished at $3. The index before that job is full of entries
// of removed jobs. It skips a job whose end its flow has not recorded.
var retainableSQL = `
SELECT id, ` + pgdriver.Time(`finished_at`) + ` FROM {history} WHERE queue = $2::text
	AND finished_at >= coalesce($3::timestamptz, '-infinity') AND (finished_at, id) > (coalesce($3::timestamptz, '-infinity'), $4::bigint)
	AND finished_at < statement_timestamp() - coalesce((SELECT retention FROM {queues} WHERE name = $2::text), (SELECT retention FROM {queues} WHERE name = '*'),
		$1::bigint * interval '1 microsecond')
	AND NOT id = ANY ({ids}::text::bigint[])
	AND (SELECT true FROM {flow steps} AS s WHERE s.job_id = {history}.id AND s.state = 'enqueued' LIMIT 1) IS NULL
ORDER BY finished_at, id LIMIT {limit}`

// removeSQL removes the finished jobs $1, with their attempts and logs. It fails at once if
// another transaction has locked one of them. It cannot skip that row, since its role need not
// have the right to lock rows.
const removeSQL = `
WITH gone AS (
	DELETE FROM {history} WHERE id = ANY (ARRAY(SELECT unnest($1::text::bigint[]) WHERE set_config('lock_timeout', '20', true) IS NOT NULL)) RETURNING id
), attempts AS (
	DELETE FROM {attempts} WHERE job_id = ANY (ARRAY(SELECT id FROM gone))
), logs AS (
	DELETE FROM {logs} WHERE job_id = ANY (ARRAY(SELECT id FROM gone))
)
SELECT count(*) FROM gone`

const forgettableSQL = `
SELECT key FROM {once} WHERE expires_at < statement_timestamp() AND NOT key = ANY (ARRAY(SELECT jsonb_array_elements_text($1::jsonb)))
ORDER BY expires_at LIMIT {limit} FOR UPDATE SKIP LOCKED`

const forgetSQL = `
WITH gone AS (
	DELETE FROM {once} WHERE key = ANY (ARRAY(
		SELECT key FROM {once} WHERE key = ANY (ARRAY(SELECT jsonb_array_elements_text($1::jsonb))) AND expires_at < statement_timestamp() FOR UPDATE SKIP LOCKED))
	RETURNING 1
)
SELECT count(*) FROM gone`

// orphansSQL selects the emitters without a checkpoint, or all emitters if there are no
// checkpoints. No worker removes their rows.
func orphansSQL(t tables.Jobs, events *tables.Tables) string {
	known := "false"
	if events != nil {
		known = `EXISTS (SELECT FROM ` + events.Checkpoints.SQL() + ` AS c WHERE c.consumer_name = of.emitter)`
	}
	return `
WITH RECURSIVE of AS (
	(SELECT emitter FROM ` + t.Emitted.SQL() + ` ORDER BY emitter LIMIT 1)
	UNION ALL
	SELECT next.emitter FROM of CROSS JOIN LATERAL (SELECT emitter FROM ` + t.Emitted.SQL() + ` AS e WHERE e.emitter > of.emitter ORDER BY emitter LIMIT 1) AS next
)
SELECT emitter FROM of WHERE NOT ` + known + ` LIMIT 100`
}

// raiseSQL raises for each emitter the position up to which its events are settled. This is its
// checkpoint, or lower if events below it may still be delivered, late or from the dead
// letters. It removes the rows of the first five thousand events below the position of an
// earlier call. A transaction that enqueues either holds a lock on the position's row, or has
// not read the new position. In both cases the rows below it still exist.
func raiseSQL(t tables.Jobs, events tables.Tables) string {
	return strings.NewReplacer("{emitted}", t.Emitted.SQL(), "{through}", t.EmittedThrough.SQL(),
		"{checkpoints}", events.Checkpoints.SQL(), "{gaps}", events.GapSkips.SQL(), "{letters}", events.DeadLetters.SQL()).Replace(`
WITH old AS MATERIALIZED (
	SELECT emitter, position FROM {through} ORDER BY emitter FOR UPDATE SKIP LOCKED
), settled AS MATERIALIZED (
	SELECT c.consumer_name AS emitter, least(c.last_position,
		(SELECT min(g.gap_position) - 1 FROM {gaps} AS g WHERE g.consumer_name = c.consumer_name AND g.state = 'open'),
		(SELECT min(l.global_position) - 1 FROM {letters} AS l WHERE l.consumer_name = c.consumer_name)) AS position
	FROM {checkpoints} AS c WHERE EXISTS (SELECT FROM {emitted} AS e WHERE e.emitter = c.consumer_name)
), raised AS (
	UPDATE {through} AS t SET position = s.position FROM settled AS s JOIN old USING (emitter)
	WHERE t.emitter = s.emitter AND t.position < s.position
), first AS (
	INSERT INTO {through} (emitter, position)
	SELECT emitter, position FROM settled WHERE emitter NOT IN (SELECT emitter FROM {through})
	ON CONFLICT (emitter) DO NOTHING
), bound AS MATERIALIZED (
	SELECT emitter, least(position, (SELECT e.position FROM {emitted} AS e WHERE e.emitter = old.emitter ORDER BY e.position OFFSET 5000 LIMIT 1)) AS position FROM old
)
DELETE FROM {emitted} AS e USING bound AS b WHERE e.emitter = b.emitter AND e.position <= b.position`)
}
