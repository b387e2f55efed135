package queue

import (
	"strings"

	"github.com/pgfrontier/worker/internal/liveness"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/tables"
)

// unknownSQL finds kinds of jobs that are due and that a worker has no code for,
// among the first thousand. It goes from lane to lane, not over what is due later.
const unknownSQL = `
SELECT kind FROM (
	SELECT j.kind FROM generate_series(1, 9) AS p CROSS JOIN LATERAL (
		SELECT kind FROM {jobs} WHERE state = 'available' AND queue = $1::text AND priority = p::smallint AND run_at <= statement_timestamp()
		ORDER BY run_at, id LIMIT 1000) AS j
	LIMIT 1000) AS first
WHERE kind <> ALL (ARRAY(SELECT jsonb_array_elements_text($2::jsonb)))
GROUP BY kind ORDER BY kind LIMIT 10`

// unservedSQL finds queues with jobs that are due, and that no living worker claims from. A worker
// whose status says nothing of queues may claim from any; one without kinds claims from none.
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

// lives is true if the last heartbeat of worker o is not older than its HeartbeatTimeout, by default
// 30 seconds.
var lives = `o.heartbeat_at > clock_timestamp() - ` + liveness.TimeoutSQL("o", "interval '30 seconds'")

// flowsSQL says whether this role may read what unadvancedSQL reads.
const flowsSQL = `
SELECT coalesce(has_column_privilege(to_regclass($1::text), 'finished_at', 'SELECT') AND has_column_privilege(to_regclass($2::text), 'next_at', 'SELECT'), false)`

// unadvancedSQL says whether runs of flows have not ended and nobody looks after them. Who
// advances flows takes a turn once a second, or pauses for as long as the turn says.
const unadvancedSQL = `
SELECT EXISTS (SELECT FROM {flow runs} WHERE finished_at IS NULL) AND coalesce((SELECT next_at FROM {flow sweep}) < statement_timestamp() - interval '1 minute', true)`

// claimersSQL finds the workers that jobs run for and that have no row. It steps
// from worker to worker in the index.
const claimersSQL = `
WITH RECURSIVE claimer AS (
	(SELECT queue, claimed_by FROM {jobs} WHERE state = 'running' ORDER BY queue, claimed_by LIMIT 1)
	UNION ALL
	SELECT next.* FROM claimer AS c CROSS JOIN LATERAL (
		SELECT queue, claimed_by FROM {jobs} WHERE state = 'running' AND (queue, claimed_by) > (c.queue, c.claimed_by)
		ORDER BY queue, claimed_by LIMIT 1) AS next
)
SELECT DISTINCT claimed_by::text FROM claimer WHERE claimed_by NOT IN (SELECT worker_id FROM {workers})`

// retainedSQL finds the queues with finished jobs. It steps from queue to queue in the
// index.
const retainedSQL = `
WITH RECURSIVE q AS (
	(SELECT queue FROM {history} ORDER BY queue LIMIT 1)
	UNION ALL
	SELECT next.queue FROM q CROSS JOIN LATERAL (SELECT queue FROM {history} WHERE queue > q.queue ORDER BY queue LIMIT 1) AS next
)
SELECT queue FROM q`

// retainableSQL finds what finished in queue $2 longer ago than that keeps it, or else all
// queues, or else $1 microseconds; NULL: for ever. It begins behind the job $4, which
// finished at $3: the index is full of what was removed before that. A job whose end its
// flow has not noted stays.
var retainableSQL = `
SELECT id, ` + pgdriver.Time(`finished_at`) + ` FROM {history} WHERE queue = $2::text
	AND finished_at >= coalesce($3::timestamptz, '-infinity') AND (finished_at, id) > (coalesce($3::timestamptz, '-infinity'), $4::bigint)
	AND finished_at < statement_timestamp() - coalesce((SELECT retention FROM {queues} WHERE name = $2::text), (SELECT retention FROM {queues} WHERE name = '*'),
		$1::bigint * interval '1 microsecond')
	AND NOT id = ANY ({ids}::text::bigint[])
	AND (SELECT true FROM {flow steps} AS s WHERE s.job_id = {history}.id AND s.state = 'enqueued' LIMIT 1) IS NULL
ORDER BY finished_at, id LIMIT {limit}`

// removeSQL removes the finished jobs $1, with their attempts and logs. It fails if somebody
// has locked one of them, and does not wait: its role need not be allowed to lock rows, so it
// cannot pass over that one.
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

// orphansSQL finds the emitters without a checkpoint, among all of them if nothing is known of
// checkpoints: no worker removes their rows.
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

// raiseSQL raises for each emitter the position up to which its events are
// settled: its checkpoint, less what may still be delivered below that, late or
// from the dead letters. It removes the rows below the position that another call
// has raised it to before, those of the first five thousand events. Who enqueues holds the row of the position, or does
// not know of it yet, and the rows below it are then still there.
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
