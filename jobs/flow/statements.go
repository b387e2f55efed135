package flow

import (
	"strconv"
	"strings"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/tables"
)

// statements is the SQL of flows. Lists are sent as text, of JSON. The planner estimates each list
// at a hundred rows. So it joins a table by its key with a hash of the list, and does not scan the
// list for each row.
//
// A statement that changes a run or its steps locks the run's row first. Rows of several runs are
// locked in the order of their IDs. So no two statements deadlock, and changes of a run are
// serialized. A statement of a worker passes over runs that others have locked, and returns their
// steps. A transaction that is left open on one run does not delay other runs.
//
// A statement may know the steps as they were before it had the lock. So it changes counters by
// increments, and changes a state only if the state is still the expected one.
type statements struct {
	start, owner, advance, spread, grow, grown, begin, sweep, turn  string
	lock, cancel, shrink, stop, enqueued, hold, revive, forget      string
	find, steps, items, counts, list, await, output, outputs, names string
	edges, old, forgetSteps, forgetRuns                             string

	mostSpread int
}

func newStatements(t tables.Jobs, mostSpread int) statements {
	news, ends := queue.ChannelsSQL(t)
	names := strings.NewReplacer("{flows}", t.Flows.SQL(), "{runs}", t.FlowRuns.SQL(), "{steps}", t.FlowSteps.SQL(), "{turn}", t.FlowSweep.SQL(),
		"{jobs}", t.Jobs.SQL(), "{history}", t.History.SQL(), "{wanted}", t.Wanted.SQL(), "{queues}", t.Queues.SQL(),
		"{news}", news, "{ends}", ends,
		"{next job}", `nextval((SELECT pg_get_serial_sequence(`+ident.Literal(t.Jobs.SQL())+`, 'id')::regclass))`,
		"{given}", given, "{held}", held, "{most}", strconv.Itoa(mostSpread), "{effects}", effects, "{of run}", ofRun, "{its job}", itsJob)
	r := func(sql string) string { return names.Replace(names.Replace(sql)) } // fragments contain names too
	return statements{
		mostSpread: mostSpread,
		start:      r(startSQL), owner: r(ownerSQL), advance: r(advanceSQL), spread: r(spreadSQL), grow: r(growSQL), grown: r(grownSQL), begin: r(beginSQL), sweep: r(sweepSQL), turn: r(turnSQL),
		lock: r(lockSQL), cancel: r(cancelSQL), shrink: r(shrinkSQL), stop: r(stopSQL), enqueued: r(enqueuedSQL), hold: r(holdSQL), revive: r(reviveSQL), forget: r(forgetSQL),
		find: r(findSQL), steps: r(stepsSQL), items: r(itemsSQL), counts: r(countsSQL), list: r(listSQL), await: r(awaitSQL), output: r(outputSQL), outputs: r(outputsSQL), names: r(namesSQL),
		edges: r(edgesSQL), old: r(oldSQL), forgetSteps: r(forgetStepsSQL), forgetRuns: r(forgetRunsSQL),
	}
}

// enqueueSQL enqueues the jobs of the enqueued steps in from, and notifies workers as package queue
// does. The Meta of a job names its step.
func enqueueSQL(from string) string {
	return `, new AS (
	INSERT INTO {jobs} (id, kind, queue, priority, run_at, args, meta, max_attempts, max_resets)
	SELECT s.job_id, x.kind, coalesce(x.queue, 'default'), coalesce(x.priority, 5), clock_timestamp() + coalesce(x.delay, 0) * interval '1 microsecond',
		coalesce(s.spec->'args', '{}'), jsonb_build_object('flow_run', s.id >> 30, 'flow_step', s.id, 'step', s.name), x.max_attempts, coalesce(x.max_resets, 5)
	FROM ` + from + ` AS s CROSS JOIN LATERAL jsonb_to_record(s.spec)
		AS x(kind text, queue text, priority smallint, delay bigint, max_attempts int, max_resets int)
	WHERE s.state = 'enqueued'
	RETURNING queue
), news AS MATERIALIZED (
	SELECT pg_notify({news}, q.queue) FROM (SELECT DISTINCT queue FROM new) AS q
	WHERE EXISTS (SELECT FROM {wanted} AS w WHERE w.queue = q.queue AND w.until > statement_timestamp())
)`
}

// startSQL starts a run of the flow $2 in version $3, whose record is $4, with the steps $1 and the
// key $5. It returns no row if the key is taken.
var startSQL = `
WITH given AS MATERIALIZED (
	SELECT * FROM jsonb_to_recordset($1::jsonb) AS g(n bigint, name text, need int, may_fail int, quorum int, leaf boolean, optional boolean, list bigint,
		dependents jsonb, spec jsonb)
), known AS (
	INSERT INTO {flows} (name, version, shape)
	SELECT $2::text, $3::text, $4::jsonb WHERE NOT EXISTS (SELECT FROM {flows} WHERE name = $2::text AND version = $3::text)
	ON CONFLICT (name, version) DO NOTHING
), run AS (
	INSERT INTO {runs} (flow, version, key, unfinished) SELECT $2::text, $3::text, $5::text, count(*) FROM given
	ON CONFLICT (flow, key) WHERE key IS NOT NULL AND state = 'running' DO NOTHING
	RETURNING id
), placed AS (
	INSERT INTO {steps} (id, name, state, need, may_fail, quorum, leaf, optional, list_id, dependents, spec, job_id)
	SELECT (r.id << 30) | (g.n << 20), g.name, CASE WHEN g.need = 0 THEN 'enqueued' ELSE 'waiting' END, g.need, g.may_fail, g.quorum, g.leaf, g.optional,
		(r.id << 30) | (g.list << 20), g.dependents, g.spec, CASE WHEN g.need = 0 THEN {next job} END
	FROM given AS g CROSS JOIN run AS r
	RETURNING id, name, state, spec, job_id
)` + enqueueSQL("placed") + `
SELECT id FROM run WHERE (SELECT count(*) FROM news) >= 0`

const ownerSQL = `
SELECT id FROM {runs} WHERE flow = $1::text AND key = $2::text AND state = 'running'`

// concluded counts the steps in effect, which have ended. It ends a run with its last step.
const concluded = `, counted AS (
	UPDATE {runs} AS r SET unfinished = r.unfinished - c.n, bad = r.bad + c.bad,
		state = CASE WHEN r.unfinished - c.n > 0 THEN 'running' WHEN r.bad + c.bad = 0 THEN 'completed' WHEN r.cancel_at IS NOT NULL THEN 'cancelled' ELSE 'failed' END,
		finished_at = CASE WHEN r.unfinished - c.n <= 0 THEN clock_timestamp() END
	FROM jsonb_to_recordset((SELECT jsonb_agg(e) FROM (
		SELECT id >> 30 AS id, count(*) AS n, count(*) FILTER (WHERE leaf AND failed AND NOT good) AS bad FROM effect GROUP BY 1) AS e)) AS c(id bigint, n int, bad int)
	WHERE r.id = c.id AND r.id = ANY (ARRAY(SELECT id >> 30 FROM effect))
	RETURNING r.id, r.flow, r.state, r.awaited AND r.finished_at IS NOT NULL AS over, r.finished_at IS NOT NULL AS ended,
		CASE WHEN isfinite(r.created_at) THEN (greatest(extract(epoch FROM clock_timestamp() - greatest(r.created_at, clock_timestamp() - interval '36500 days')), 0) * 1000000)::bigint ELSE 0 END AS took
), ends AS MATERIALIZED (
	SELECT pg_notify({ends}, 'run ' || id) FROM counted WHERE over
)`

// given are the IDs of steps, $1. turn locks their runs, except runs that others have locked. mine
// are the steps of the locked runs.
const given = `given AS MATERIALIZED (
	SELECT DISTINCT value::bigint AS id FROM jsonb_array_elements_text($1::jsonb)
), turn AS MATERIALIZED (
	SELECT id FROM {runs} WHERE id = ANY (ARRAY(SELECT DISTINCT id >> 30 FROM given)) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
), mine AS MATERIALIZED (
	SELECT id FROM given WHERE id >> 30 = ANY (ARRAY(SELECT id FROM turn))
)`

// held are the given steps of runs that others have locked.
const held = `
UNION ALL SELECT id, 'held' FROM given
WHERE NOT id >> 30 = ANY (ARRAY(SELECT id FROM turn)) AND (SELECT true FROM {runs} AS r WHERE r.id = given.id >> 30 LIMIT 1)`

// effects is the effect of the ends of the steps s on their dependents: good and failed. failed
// includes steps that were skipped because of a failed step.
const effects = `s.state = 'completed' OR s.state = 'skipped' AND coalesce(s.code, '') = 'SKIPPED' OR s.optional AND s.state IN ('failed', 'cancelled', 'expired') AS good,
		s.state IN ('failed', 'cancelled', 'expired') OR s.state = 'skipped' AND coalesce(s.code, '') <> 'SKIPPED' AND s.blamed AS failed`

// itsJob finds the finished job of the step s. If IDs of jobs repeat, another job may have this ID
// in the history.
const itsJob = `id = s.job_id AND meta->'flow_step' = to_jsonb(s.id)`

// meaning is the effect of the end of a step e along its edge d.
const meaning = `CASE d."on" WHEN 'end' THEN true WHEN 'failure' THEN e.failed ELSE e.good AND (d."when" IS NULL OR coalesce(e.result @> d."when", false)) END`

// advanceSQL records the ends of steps and their effect on dependents, once: it changes a state
// only if it is still the state that it has read. A step has ended if its job is in the history or
// in neither table. A statement may also have ended it without a job. Such a step has no
// finished_at until its end is recorded.
//
// A step is skipped when too many of its dependencies have ended badly and one of them has failed.
// If none has failed, the step is just not needed. It is then skipped only after all dependencies
// have ended, since one may still fail. need plus may_fail is the number of dependencies that have
// not ended.
//
// The statement returns the steps that it has moved, with their state. These are steps that are
// enqueued now, and steps to be recorded or spread next. It also returns held steps. For each run
// that it has ended, it returns a row in place of a step.
var advanceSQL = `
WITH {given}, seen AS MATERIALIZED (
	SELECT s.* FROM mine AS g CROSS JOIN LATERAL (SELECT id, state, job_id, finished_at FROM {steps} WHERE id = g.id LIMIT 1) AS s
	WHERE s.finished_at IS NULL AND s.state NOT IN ('waiting', 'ready', 'spread')
), gone AS MATERIALIZED (
	SELECT s.id, s.state AS was, s.job_id, coalesce(CASE WHEN h.state = 'cancelled' AND h.code = 'SKIPPED' THEN 'skipped' ELSE h.state END, 'failed') AS state,
		CASE WHEN h.state IS NULL THEN 'FORGOTTEN' ELSE h.code END AS code, CASE WHEN h.state IS NULL THEN 'its job is neither unfinished nor in the history' ELSE h.error END AS error, h.result
	FROM seen AS s LEFT JOIN LATERAL (SELECT state, code, error, result FROM {history} WHERE {its job} LIMIT 1) AS h ON true
	WHERE s.state <> 'enqueued' OR h.state IS NOT NULL OR (SELECT true FROM {jobs} WHERE id = s.job_id LIMIT 1) IS NULL
), effect AS (
	UPDATE {steps} AS s SET finished_at = clock_timestamp(),
		state = CASE s.state WHEN 'enqueued' THEN g.state ELSE s.state END, code = CASE s.state WHEN 'enqueued' THEN g.code ELSE s.code END,
		error = CASE s.state WHEN 'enqueued' THEN g.error ELSE s.error END, result = CASE s.state WHEN 'enqueued' THEN g.result ELSE s.result END
	FROM gone AS g
	WHERE s.id = g.id AND s.id = ANY (ARRAY(SELECT id FROM gone)) AND s.finished_at IS NULL AND s.state = g.was AND s.job_id IS NOT DISTINCT FROM g.job_id
	RETURNING s.id, s.leaf, s.dependents, s.result, {effects}
), told AS MATERIALIZED (
	SELECT id, count(*) FILTER (WHERE ok)::int AS good, count(*) FILTER (WHERE NOT ok)::int AS bad, bool_or(blamed AND NOT ok) AS blamed
	FROM (
		SELECT ((e.id >> 30) << 30) | (d.n << 20) AS id, e.failed AS blamed, ` + meaning + ` AS ok
		FROM effect AS e CROSS JOIN LATERAL jsonb_to_recordset(e.dependents) AS d(n bigint, "on" text, "when" jsonb)) AS d
	GROUP BY id
), moved AS (
	UPDATE {steps} AS s SET need = s.need - t.good, may_fail = s.may_fail - t.bad, blamed = s.blamed OR t.blamed,
		state = CASE
			WHEN s.need - t.good <= 0 THEN CASE WHEN s.state = 'spread' THEN 'completed' WHEN s.list_id IS NOT NULL THEN 'ready' ELSE 'enqueued' END
			WHEN s.may_fail - t.bad < 0 AND s.state = 'spread' THEN 'failed'
			WHEN s.may_fail - t.bad < 0 AND (s.blamed OR t.blamed OR s.need - t.good + s.may_fail - t.bad = 0) THEN 'skipped'
			ELSE s.state END,
		job_id = CASE WHEN s.need - t.good <= 0 AND s.list_id IS NULL THEN {next job} ELSE s.job_id END
	FROM told AS t
	WHERE s.id = t.id AND s.id = ANY (ARRAY(SELECT id FROM told)) AND s.state IN ('waiting', 'spread')
	RETURNING s.id, s.name, s.state, s.spec, s.job_id
)` + enqueueSQL("moved") + `` + concluded + `
SELECT id, state FROM moved WHERE state NOT IN ('waiting', 'spread') AND (SELECT count(*) FROM news) >= 0 AND (SELECT count(*) FROM ends) >= 0{held}
UNION ALL SELECT id, 'run ' || json_build_object('Flow', flow, 'State', state, 'Took', took) FROM counted WHERE ended`

// spreadSQL adds the jobs of Map steps whose lists are complete. An earlier statement has recorded
// this, so this statement sees the lists. It takes the first lists with {most} elements in all, and
// returns the others as ready. A single list with more elements is long: see growSQL.
var spreadSQL = `
WITH {given}, list AS MATERIALIZED (
	SELECT m.id, m.quorum, CASE WHEN l.result IS NULL OR jsonb_typeof(l.result) = 'null' THEN '[]' WHEN jsonb_typeof(l.result) = 'array' THEN l.result END AS list
	FROM mine AS g CROSS JOIN LATERAL (SELECT id, state, list_id, quorum FROM {steps} WHERE id = g.id LIMIT 1) AS m
	CROSS JOIN LATERAL (SELECT result FROM {steps} WHERE id = m.list_id LIMIT 1) AS l
	WHERE m.state = 'ready'
), counts AS MATERIALIZED (
	SELECT id, list, n, n > {most} AND n >= quorum AS long FROM (SELECT *, jsonb_array_length(list) AS n FROM list) AS l
), sums AS MATERIALIZED (
	SELECT *, sum(CASE WHEN long THEN 0 ELSE coalesce(n, 0) END) OVER (ORDER BY id) AS upto FROM counts
), sized AS MATERIALIZED (
	SELECT id, list, n FROM sums WHERE long IS NOT TRUE AND (upto <= {most} OR n > {most})
), spread AS (
	UPDATE {steps} AS s SET need = CASE s.quorum WHEN 0 THEN z.size ELSE s.quorum END, may_fail = CASE s.quorum WHEN 0 THEN 0 ELSE z.size - s.quorum END,
		state = CASE WHEN z.n IS NULL OR z.n < s.quorum THEN 'failed' WHEN z.n = 0 THEN 'completed' ELSE 'spread' END,
		code = CASE WHEN z.n IS NULL THEN 'NO_LIST' WHEN z.n < s.quorum THEN 'TOO_FEW' END,
		error = CASE WHEN z.n IS NULL THEN 'the result of the step that makes its list is no list' WHEN z.n < s.quorum THEN 'the list has ' || z.n || ' elements, and ' || s.quorum || ' are needed' END
	FROM (SELECT id, list, coalesce(n, 0) AS size, n FROM sized) AS z
	WHERE s.id = z.id AND s.id = ANY (ARRAY(SELECT id FROM sized)) AND s.state = 'ready'
	RETURNING s.id, s.name, s.state, s.spec, z.list, z.n
), children AS (
	INSERT INTO {steps} (id, name, state, dependents, spec, job_id)
	SELECT m.id + c.i, m.name, 'enqueued', jsonb_build_array(jsonb_build_object('n', (m.id >> 20) & 1023, 'on', 'success')),
		m.spec || jsonb_build_object('args', c.value), {next job}
	FROM spread AS m CROSS JOIN LATERAL jsonb_array_elements(m.list) WITH ORDINALITY AS c(value, i) WHERE m.state = 'spread'
	RETURNING id, name, state, spec, job_id
)` + enqueueSQL("children") + `, counted AS (
	UPDATE {runs} AS r SET unfinished = r.unfinished + c.n
	FROM jsonb_to_recordset((SELECT jsonb_agg(e) FROM (
		SELECT id >> 30 AS id, sum(n) AS n FROM spread WHERE state = 'spread' GROUP BY 1) AS e)) AS c(id bigint, n int)
	WHERE r.id = c.id AND r.id = ANY (ARRAY(SELECT id >> 30 FROM spread))
)
SELECT id, state FROM spread WHERE (SELECT count(*) FROM news) >= 0
UNION ALL SELECT id, CASE WHEN long THEN 'long' ELSE 'ready' END FROM sums WHERE id NOT IN (SELECT id FROM sized){held}`

// growSQL adds the next {most} steps of a Map step with a long list, $1 as a list. The steps are
// ready, and have no job yet. Once all steps exist, growSQL marks the Map step as spread, and
// counts them. beginSQL enqueues their jobs. Each statement is short, however long the list is.
var growSQL = `
WITH {given}, list AS MATERIALIZED (
	SELECT m.id, l.result AS list, jsonb_array_length(l.result) AS n,
		coalesce((SELECT max(c.id) - m.id FROM {steps} AS c WHERE c.id > m.id AND c.id < m.id + 1048576), 0) AS have
	FROM mine AS g CROSS JOIN LATERAL (SELECT id, state, list_id FROM {steps} WHERE id = g.id LIMIT 1) AS m
	CROSS JOIN LATERAL (SELECT result FROM {steps} WHERE id = m.list_id LIMIT 1) AS l
	WHERE m.state = 'ready'
), grown AS (
	UPDATE {steps} AS s SET state = CASE WHEN l.have < l.n THEN 'ready' ELSE 'spread' END,
		need = CASE WHEN l.have < l.n THEN s.need WHEN s.quorum = 0 THEN l.n ELSE s.quorum END,
		may_fail = CASE WHEN l.have < l.n THEN s.may_fail WHEN s.quorum = 0 THEN 0 ELSE l.n - s.quorum END
	FROM list AS l WHERE s.id = l.id AND s.id = ANY (ARRAY(SELECT id FROM list)) AND s.state = 'ready'
	RETURNING s.id, s.name, s.state, s.spec, l.list, l.n, l.have
), children AS (
	INSERT INTO {steps} (id, name, state, dependents, spec)
	SELECT m.id + c.i, m.name, 'ready', jsonb_build_array(jsonb_build_object('n', (m.id >> 20) & 1023, 'on', 'success')), m.spec || jsonb_build_object('args', c.value)
	FROM grown AS m CROSS JOIN LATERAL jsonb_array_elements(m.list) WITH ORDINALITY AS c(value, i)
	WHERE m.state = 'ready' AND c.i > m.have AND c.i <= m.have + {most}
	ON CONFLICT (id) DO NOTHING
), counted AS (
	UPDATE {runs} AS r SET unfinished = r.unfinished + g.n FROM grown AS g
	WHERE r.id = g.id >> 30 AND r.id = ANY (ARRAY(SELECT id >> 30 FROM grown)) AND g.state = 'spread'
)
SELECT id, CASE state WHEN 'ready' THEN 'long' ELSE state END FROM grown{held}`

// grownSQL finds the next {most} steps of a long list without a job, after the step $1. This step
// is the Map step itself or a step of its list.
const grownSQL = `
SELECT id FROM {steps} WHERE id > $1::bigint AND id < ($1::bigint >> 20 << 20) + 1048576 AND state = 'ready' ORDER BY id LIMIT {most}`

// beginSQL enqueues the jobs of steps of long lists, once the Map step knows their number. If the
// Map step has ended before the last job has begun, the other jobs begin all the same.
var beginSQL = `
WITH {given}, begun AS (
	UPDATE {steps} AS s SET state = 'enqueued', job_id = {next job}
	WHERE s.id = ANY (ARRAY(SELECT id FROM mine)) AND s.state = 'ready' AND s.id & 1048575 <> 0
		AND (SELECT m.state FROM {steps} AS m WHERE m.id = s.id >> 20 << 20) IN ('spread', 'completed', 'failed')
	RETURNING s.id, s.name, s.state, s.spec, s.job_id
)` + enqueueSQL("begun") + `
SELECT id, state FROM begun WHERE (SELECT count(*) FROM news) >= 0{held}`

// turnSQL takes the turn to sweep, for $1 microseconds. A turn that is longer than longestPause
// ahead was taken before the server's clock was set back. Without this rule no worker would sweep
// until then.
const turnSQL = `
INSERT INTO {turn} AS t ("only", next_at) VALUES (true, statement_timestamp() + $1::bigint * interval '1 microsecond')
ON CONFLICT ("only") DO UPDATE SET next_at = excluded.next_at WHERE t.next_at <= statement_timestamp() OR t.next_at > statement_timestamp() + interval '1 minute'
RETURNING true`

// sweepSQL reads the next thousand steps after $1. It reads steps of unfinished runs that are
// enqueued, or that were moved and not processed further. It returns the steps to report. The first
// row is the last step that was read, without a state, or as "full" if more may follow.
const sweepSQL = `
WITH page AS MATERIALIZED (
	SELECT s.id, s.state, s.job_id
	FROM (SELECT id FROM {runs} WHERE finished_at IS NULL AND id >= $1::bigint >> 30 ORDER BY id) AS r CROSS JOIN LATERAL (
		SELECT id, state, job_id FROM {steps} WHERE id > $1::bigint AND id >= r.id << 30 AND id < (r.id + 1) << 30
			AND finished_at IS NULL AND state NOT IN ('waiting', 'spread')
		ORDER BY id LIMIT 1000) AS s
	LIMIT 1000
)
SELECT coalesce(max(id), 0), CASE count(*) WHEN 1000 THEN 'full' ELSE '' END FROM page
UNION ALL
SELECT id, state FROM page WHERE state <> 'enqueued' OR (SELECT true FROM {jobs} WHERE id = page.job_id LIMIT 1) IS NULL`

const lockSQL = `
SELECT state, cancel_at IS NOT NULL FROM {runs} WHERE id = $1::bigint FOR NO KEY UPDATE`

// ofRun selects the steps s of the run $1.
const ofRun = `s.id >= $1::bigint << 30 AND s.id < ($1::bigint + 1) << 30`

const cancelSQL = `
UPDATE {runs} SET cancel_at = clock_timestamp() WHERE id = $1::bigint`

// stopSQL ends the steps of a run that have no job. Ends that were to be recorded need no record:
// no dependent can begin.
const stopSQL = `
WITH stopped AS (
	UPDATE {steps} AS s SET finished_at = clock_timestamp(), state = CASE WHEN s.state IN ('waiting', 'ready', 'spread') THEN 'cancelled' ELSE s.state END
	WHERE {of run} AND finished_at IS NULL AND state <> 'enqueued'
	RETURNING s.*
), effect AS MATERIALIZED (
	SELECT s.id, s.leaf, {effects} FROM stopped AS s
)` + concluded + `
SELECT count(*) FROM ends`

// shrinkSQL removes the steps of long lists of a run, $1, whose Map steps do not know their number
// yet.
const shrinkSQL = `
DELETE FROM {steps} WHERE id = ANY (ARRAY(
	SELECT c.id FROM (SELECT id FROM {steps} AS s WHERE {of run} AND s.state = 'ready' AND s.id & 1048575 = 0 AND s.list_id IS NOT NULL) AS m
	CROSS JOIN LATERAL (SELECT id FROM {steps} WHERE id > m.id AND id < m.id + 1048576 ORDER BY id) AS c))`

// enqueuedSQL selects the steps of a run that have a job.
const enqueuedSQL = `
SELECT id, job_id FROM {steps} AS s WHERE {of run} AND s.state = 'enqueued'`

// holdSQL locks the jobs $1 that have not ended. In the order of locks, jobs come after runs and
// steps.
const holdSQL = `
SELECT id, state = 'running' FROM {jobs} WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text($1::jsonb)::bigint)) ORDER BY id FOR UPDATE`

// edgesSQL reads the steps of a run that has ended, with the effects of their ends on dependents.
const edgesSQL = `
SELECT e.id, e.name, e.state, e.list_id IS NOT NULL, e.quorum, e.leaf, e.failed, e.good, coalesce((
	SELECT jsonb_agg(jsonb_build_object('n', d.n, 'ok', ` + meaning + `) ORDER BY d.n)
	FROM jsonb_to_recordset(e.dependents) AS d(n bigint, "on" text, "when" jsonb)), '[]')::text
FROM (SELECT s.*, {effects} FROM {steps} AS s WHERE {of run}) AS e ORDER BY e.id`

// reviveSQL makes steps of a run, $2, begin again, and continues the run.
var reviveSQL = `
WITH given AS MATERIALIZED (
	SELECT * FROM jsonb_to_recordset($2::jsonb) AS g(id bigint, state text, need int, may_fail int, blamed boolean)
), again AS (
	UPDATE {steps} AS s SET state = g.state, need = g.need, may_fail = g.may_fail, blamed = g.blamed, finished_at = NULL, code = NULL, error = NULL, result = NULL,
		job_id = CASE g.state WHEN 'enqueued' THEN {next job} END
	FROM given AS g WHERE s.id = g.id AND s.id = ANY (ARRAY(SELECT id FROM given))
	RETURNING s.id, s.name, s.state, s.spec, s.job_id
)` + enqueueSQL("again") + `
UPDATE {runs} SET state = 'running', finished_at = NULL, cancel_at = NULL, unfinished = (SELECT count(*) FROM again), bad = $3::int
WHERE id = $1::bigint AND (SELECT count(*) FROM news) >= 0`

// forgetSQL removes the steps for the jobs of the Map steps $1. Their IDs follow the ID of the Map
// step.
const forgetSQL = `
DELETE FROM {steps} WHERE id = ANY (ARRAY(
	SELECT s.id FROM (SELECT value::bigint AS id FROM jsonb_array_elements_text($1::jsonb)) AS m CROSS JOIN LATERAL (SELECT id FROM {steps} WHERE id > m.id AND id < m.id + 1048576 ORDER BY id) AS s))`

var runColumns = `r.id, r.flow, r.version, r.state, coalesce(r.key, ''), r.unfinished, ` + pgdriver.Time(`r.cancel_at`) + `, ` + pgdriver.Time(`r.created_at`) + `, ` + pgdriver.Time(`r.finished_at`)

var findSQL = `
SELECT ` + runColumns + ` FROM {runs} AS r WHERE r.id = $1::bigint`

// stepColumns are the columns that scanStep reads of the step s and its job.
var stepColumns = `s.id, s.name, s.spec->>'kind', s.state, coalesce(s.job_id, 0), coalesce(j.state, h.state, ''), coalesce(j.attempt, h.attempt, 0), coalesce(j.failures, h.failures, 0),
	` + pgdriver.Time(`coalesce(j.started_at, h.started_at)`) + `, ` + pgdriver.Time(`s.finished_at`) + `, coalesce(s.code, h.code, ''), coalesce(s.error, h.error, ''), s.result, s.optional, s.list_id, s.quorum, s.dependents::text`

const ofStep = `LEFT JOIN LATERAL (SELECT state, attempt, failures, started_at FROM {jobs} WHERE id = s.job_id LIMIT 1) AS j ON true
LEFT JOIN LATERAL (SELECT state, attempt, failures, started_at, code, error FROM {history} WHERE {its job} LIMIT 1) AS h ON true`

// stepsSQL reads the steps of a run, as in its shape.
var stepsSQL = `
SELECT ` + stepColumns + ` FROM {steps} AS s ` + ofStep + ` WHERE {of run} AND s.id & 1048575 = 0 ORDER BY s.id`

// itemsSQL reads the jobs of Map steps: the first $2 of jobs that have not completed, then of the
// others.
var itemsSQL = `
SELECT ` + stepColumns + ` FROM {steps} AS s ` + ofStep + ` WHERE {of run} AND s.id & 1048575 <> 0 ORDER BY s.state = 'completed', s.id LIMIT $2::bigint`

// countsSQL counts the jobs of Map steps by state.
const countsSQL = `
SELECT s.id >> 20 << 20, s.state, coalesce(j.state, ''), count(*) FROM {steps} AS s
LEFT JOIN LATERAL (SELECT state FROM {jobs} WHERE id = s.job_id AND s.state = 'enqueued' LIMIT 1) AS j ON true
WHERE {of run} AND s.id & 1048575 <> 0 GROUP BY 1, 2, 3`

// listSQL lists runs with IDs below $1. The other conditions of a filter are appended, so that the
// planner can choose the index.
var listSQL = `
SELECT ` + runColumns + ` FROM {runs} AS r WHERE r.id < $1::bigint`

// awaitSQL requests a notification of the end of a run. It returns whether the end is still to
// come.
const awaitSQL = `
WITH told AS (UPDATE {runs} SET awaited = true WHERE id = $1::bigint AND NOT awaited AND state = 'running')
SELECT coalesce((SELECT state FROM {runs} WHERE id = $1::bigint), '')`

// outputSQL finds the step $2 of the run $1 by name. It tries first the place of the step in this
// program's flow, $3.
const outputSQL = `
SELECT state, finished_at IS NOT NULL, coalesce(code, ''), coalesce(error, ''), result FROM (
	SELECT * FROM {steps} WHERE id = $3::bigint AND name = $2::text
	UNION ALL
	SELECT * FROM {steps} AS s WHERE {of run} AND id & 1048575 = 0 AND name = $2::text) AS s LIMIT 1`

// namesSQL reads the names of a run's steps.
const namesSQL = `
SELECT name FROM {steps} AS s WHERE {of run} AND id & 1048575 = 0 ORDER BY id`

// outputsSQL reads the results of the completed jobs of a Map step.
const outputsSQL = `
SELECT coalesce(jsonb_agg(result ORDER BY id), '[]')::text FROM {steps}
WHERE id > $1::bigint AND id < $1::bigint + 1048576 AND state = 'completed'`

// oldSQL finds runs that ended before the retention. The retention is the operator's for all
// queues, or else $1 microseconds; NULL is for ever. The runs of the list $2 are left out.
const oldSQL = `
SELECT id FROM {runs} WHERE finished_at < statement_timestamp() - coalesce((SELECT retention FROM {queues} WHERE name = '*'), $1::bigint * interval '1 microsecond')
	AND NOT id = ANY (ARRAY(SELECT jsonb_array_elements_text($2::jsonb)::bigint))
ORDER BY finished_at, id LIMIT {limit} FOR UPDATE SKIP LOCKED`

// forgetStepsSQL removes steps of finished runs, $1: five thousand at most. It returns how many it
// has removed.
const forgetStepsSQL = `
WITH ended AS MATERIALIZED (
	SELECT id FROM {runs} WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text($1::jsonb)::bigint)) AND finished_at IS NOT NULL ORDER BY id FOR UPDATE SKIP LOCKED
), gone AS (
	DELETE FROM {steps} WHERE id = ANY (ARRAY(
		SELECT s.id FROM ended AS r CROSS JOIN LATERAL (
			SELECT id FROM {steps} WHERE id >= r.id << 30 AND id < (r.id + 1) << 30 ORDER BY id) AS s LIMIT 5000))
	RETURNING 1
)
SELECT count(*) FROM gone`

// forgetRunsSQL removes finished runs, $1, without steps.
const forgetRunsSQL = `
WITH gone AS (
	DELETE FROM {runs} WHERE id = ANY (ARRAY(
		SELECT id FROM {runs} WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text($1::jsonb)::bigint)) AND finished_at IS NOT NULL FOR UPDATE SKIP LOCKED))
		AND (SELECT true FROM {steps} AS s WHERE s.id >= {runs}.id << 30 AND s.id < ({runs}.id + 1) << 30 LIMIT 1) IS NULL
	RETURNING 1
)
SELECT count(*) FROM gone`
