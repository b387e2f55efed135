package flow

import (
	"strconv"
	"strings"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/tables"
)

// statements is the SQL of flows. Lists come as text, of JSON. The planner takes each for
// a hundred rows, so that it joins a table by its key with a hash of the list, and does
// not go through the list for each row.
//
// Whatever changes a run or its steps locks the run's row first, and those of several
// runs in the order of their ids. So nobody waits for another crosswise, and what
// happens to a run happens one after the other. A statement of a worker passes over runs
// that others have locked, and returns their steps: a transaction that is left open on one
// run keeps no other from going on. A statement may know the steps as they were before it
// had the lock: it changes counters by what is added to them, and states only where they
// still are what it expects.
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
	r := func(sql string) string { return names.Replace(names.Replace(sql)) } // fragments have names too
	return statements{
		mostSpread: mostSpread,
		start:      r(startSQL), owner: r(ownerSQL), advance: r(advanceSQL), spread: r(spreadSQL), grow: r(growSQL), grown: r(grownSQL), begin: r(beginSQL), sweep: r(sweepSQL), turn: r(turnSQL),
		lock: r(lockSQL), cancel: r(cancelSQL), shrink: r(shrinkSQL), stop: r(stopSQL), enqueued: r(enqueuedSQL), hold: r(holdSQL), revive: r(reviveSQL), forget: r(forgetSQL),
		find: r(findSQL), steps: r(stepsSQL), items: r(itemsSQL), counts: r(countsSQL), list: r(listSQL), await: r(awaitSQL), output: r(outputSQL), outputs: r(outputsSQL), names: r(namesSQL),
		edges: r(edgesSQL), old: r(oldSQL), forgetSteps: r(forgetStepsSQL), forgetRuns: r(forgetRunsSQL),
	}
}

// enqueueSQL enqueues the jobs of the steps in from that are enqueued, and tells of them
// as package queue does. Their Meta says which step they are.
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

// startSQL starts a run of the flow $2 in version $3, whose record is $4, with the steps
// $1 and the key $5. It returns nothing if the key is taken.
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

// concluded counts the steps in effect, which have ended, and ends their runs with the
// last of them.
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

// given are the ids of steps, $1. turn locks their runs, but those that others have
// locked. mine are the steps of runs that it has locked.
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

// effects is what the ends of the steps s mean to those that depend on them: good, and
// failed, which a step that was skipped because of such a step has too.
const effects = `s.state = 'completed' OR s.state = 'skipped' AND coalesce(s.code, '') = 'SKIPPED' OR s.optional AND s.state IN ('failed', 'cancelled', 'expired') AS good,
		s.state IN ('failed', 'cancelled', 'expired') OR s.state = 'skipped' AND coalesce(s.code, '') <> 'SKIPPED' AND s.blamed AS failed`

// itsJob finds the finished job of the step s. Where the ids of jobs come again, another job may
// have that id in the history.
const itsJob = `id = s.job_id AND meta->'flow_step' = to_jsonb(s.id)`

// meaning is what the end of a step e means along its edge d.
const meaning = `CASE d."on" WHEN 'end' THEN true WHEN 'failure' THEN e.failed ELSE e.good AND (d."when" IS NULL OR coalesce(e.result @> d."when", false)) END`

// advanceSQL takes note of the ends of steps, and tells their dependents, once: it
// changes the state of a step from what it has seen. A step has ended if its job is
// in the history, or in neither table, or if a statement has ended it without a job:
// then it is left to be told, and has no finished_at.
//
// A step is skipped when too many of those that it depends on have ended badly, and one
// of them has failed. If none has, and the step is just not needed, it is not skipped
// before all have ended: one may yet fail. need and may_fail together count those that
// have not ended.
//
// It returns the steps that it has moved on, with their state: those that are enqueued
// now, and those that have to be told or spread in turn; those that are held; and, in place of a
// step, each run that it has ended.
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

// spreadSQL adds the jobs of steps of Map, whose lists are complete. They were told so
// by an earlier statement, so this one sees the lists. It takes the first lists that have
// {most} elements together, and returns the others as ready. One that has more by itself is
// long: see growSQL.
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

// growSQL adds the next {most} steps of a Map step with a long list, $1 as a list: they are
// ready, and have no job yet. Once all are there, it marks the Map step as spread, and counts
// them. beginSQL enqueues their jobs. Each statement is short, however long the list is.
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

// grownSQL finds the next {most} steps of a long list that have no job yet, behind the step
// $1, which is the Map step itself or one of its list.
const grownSQL = `
SELECT id FROM {steps} WHERE id > $1::bigint AND id < ($1::bigint >> 20 << 20) + 1048576 AND state = 'ready' ORDER BY id LIMIT {most}`

// beginSQL enqueues the jobs of steps of long lists, once the Map step knows how many there
// are. If it has ended before the last of them has begun, the others begin all the same.
var beginSQL = `
WITH {given}, begun AS (
	UPDATE {steps} AS s SET state = 'enqueued', job_id = {next job}
	WHERE s.id = ANY (ARRAY(SELECT id FROM mine)) AND s.state = 'ready' AND s.id & 1048575 <> 0
		AND (SELECT m.state FROM {steps} AS m WHERE m.id = s.id >> 20 << 20) IN ('spread', 'completed', 'failed')
	RETURNING s.id, s.name, s.state, s.spec, s.job_id
)` + enqueueSQL("begun") + `
SELECT id, state FROM begun WHERE (SELECT count(*) FROM news) >= 0{held}`

// turnSQL takes the turn to sweep, for $1 microseconds. A turn that is longer than
// longestPause ahead was taken before the server's clock was set back: nobody would sweep until
// then.
const turnSQL = `
INSERT INTO {turn} AS t ("only", next_at) VALUES (true, statement_timestamp() + $1::bigint * interval '1 microsecond')
ON CONFLICT ("only") DO UPDATE SET next_at = excluded.next_at WHERE t.next_at <= statement_timestamp() OR t.next_at > statement_timestamp() + interval '1 minute'
RETURNING true`

// sweepSQL looks at the next thousand steps above $1, of runs that have not ended, that
// are enqueued, or were moved on and nobody went on with. It returns those that
// must be told, and first the last that it has looked at, without a state, or as "full" if
// there may be more.
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

// ofRun are the steps s of the run $1.
const ofRun = `s.id >= $1::bigint << 30 AND s.id < ($1::bigint + 1) << 30`

const cancelSQL = `
UPDATE {runs} SET cancel_at = clock_timestamp() WHERE id = $1::bigint`

// stopSQL ends the steps of a run that have no job. Of what was left to be told there is
// nobody to tell.
const stopSQL = `
WITH stopped AS (
	UPDATE {steps} AS s SET finished_at = clock_timestamp(), state = CASE WHEN s.state IN ('waiting', 'ready', 'spread') THEN 'cancelled' ELSE s.state END
	WHERE {of run} AND finished_at IS NULL AND state <> 'enqueued'
	RETURNING s.*
), effect AS MATERIALIZED (
	SELECT s.id, s.leaf, {effects} FROM stopped AS s
)` + concluded + `
SELECT count(*) FROM ends`

// shrinkSQL removes the steps of long lists of a run, $1, whose Map steps do not know yet how
// many there are.
const shrinkSQL = `
DELETE FROM {steps} WHERE id = ANY (ARRAY(
	SELECT c.id FROM (SELECT id FROM {steps} AS s WHERE {of run} AND s.state = 'ready' AND s.id & 1048575 = 0 AND s.list_id IS NOT NULL) AS m
	CROSS JOIN LATERAL (SELECT id FROM {steps} WHERE id > m.id AND id < m.id + 1048576 ORDER BY id) AS c))`

// enqueuedSQL are the steps of a run that have a job.
const enqueuedSQL = `
SELECT id, job_id FROM {steps} AS s WHERE {of run} AND s.state = 'enqueued'`

// holdSQL locks the jobs $1 that have not ended. Jobs come after runs and steps in the
// order of locks.
const holdSQL = `
SELECT id, state = 'running' FROM {jobs} WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text($1::jsonb)::bigint)) ORDER BY id FOR UPDATE`

// edgesSQL reads the steps of a run that has ended, with what their ends mean to their
// dependents.
const edgesSQL = `
SELECT e.id, e.name, e.state, e.list_id IS NOT NULL, e.quorum, e.leaf, e.failed, e.good, coalesce((
	SELECT jsonb_agg(jsonb_build_object('n', d.n, 'ok', ` + meaning + `) ORDER BY d.n)
	FROM jsonb_to_recordset(e.dependents) AS d(n bigint, "on" text, "when" jsonb)), '[]')::text
FROM (SELECT s.*, {effects} FROM {steps} AS s WHERE {of run}) AS e ORDER BY e.id`

// reviveSQL makes steps of a run, $2, begin again, and lets the run go on.
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

// forgetSQL removes the jobs' steps of the Map steps $1: they follow each of these.
const forgetSQL = `
DELETE FROM {steps} WHERE id = ANY (ARRAY(
	SELECT s.id FROM (SELECT value::bigint AS id FROM jsonb_array_elements_text($1::jsonb)) AS m CROSS JOIN LATERAL (SELECT id FROM {steps} WHERE id > m.id AND id < m.id + 1048576 ORDER BY id) AS s))`

var runColumns = `r.id, r.flow, r.version, r.state, coalesce(r.key, ''), r.unfinished, ` + pgdriver.Time(`r.cancel_at`) + `, ` + pgdriver.Time(`r.created_at`) + `, ` + pgdriver.Time(`r.finished_at`)

var findSQL = `
SELECT ` + runColumns + ` FROM {runs} AS r WHERE r.id = $1::bigint`

// stepColumns is what scanStep reads of the step s, and its job.
var stepColumns = `s.id, s.name, s.spec->>'kind', s.state, coalesce(s.job_id, 0), coalesce(j.state, h.state, ''), coalesce(j.attempt, h.attempt, 0), coalesce(j.failures, h.failures, 0),
	` + pgdriver.Time(`coalesce(j.started_at, h.started_at)`) + `, ` + pgdriver.Time(`s.finished_at`) + `, coalesce(s.code, h.code, ''), coalesce(s.error, h.error, ''), s.result, s.optional, s.list_id, s.quorum, s.dependents::text`

const ofStep = `LEFT JOIN LATERAL (SELECT state, attempt, failures, started_at FROM {jobs} WHERE id = s.job_id LIMIT 1) AS j ON true
LEFT JOIN LATERAL (SELECT state, attempt, failures, started_at, code, error FROM {history} WHERE {its job} LIMIT 1) AS h ON true`

// stepsSQL reads the steps of a run, those of its shape.
var stepsSQL = `
SELECT ` + stepColumns + ` FROM {steps} AS s ` + ofStep + ` WHERE {of run} AND s.id & 1048575 = 0 ORDER BY s.id`

// itemsSQL reads the jobs of Map steps, the first $2 of those that have not completed,
// and then of the others.
var itemsSQL = `
SELECT ` + stepColumns + ` FROM {steps} AS s ` + ofStep + ` WHERE {of run} AND s.id & 1048575 <> 0 ORDER BY s.state = 'completed', s.id LIMIT $2::bigint`

// countsSQL counts the jobs of Map steps by their states.
const countsSQL = `
SELECT s.id >> 20 << 20, s.state, coalesce(j.state, ''), count(*) FROM {steps} AS s
LEFT JOIN LATERAL (SELECT state FROM {jobs} WHERE id = s.job_id AND s.state = 'enqueued' LIMIT 1) AS j ON true
WHERE {of run} AND s.id & 1048575 <> 0 GROUP BY 1, 2, 3`

// listSQL lists runs below $1. What else a filter names follows, so that the planner
// knows which index serves it.
var listSQL = `
SELECT ` + runColumns + ` FROM {runs} AS r WHERE r.id < $1::bigint`

// awaitSQL makes the end of a run be told, and says whether it is still to come.
const awaitSQL = `
WITH told AS (UPDATE {runs} SET awaited = true WHERE id = $1::bigint AND NOT awaited AND state = 'running')
SELECT coalesce((SELECT state FROM {runs} WHERE id = $1::bigint), '')`

// outputSQL finds the step $2 of the run $1 by its name, first where this program's
// flow has it, at $3.
const outputSQL = `
SELECT state, finished_at IS NOT NULL, coalesce(code, ''), coalesce(error, ''), result FROM (
	SELECT * FROM {steps} WHERE id = $3::bigint AND name = $2::text
	UNION ALL
	SELECT * FROM {steps} AS s WHERE {of run} AND id & 1048575 = 0 AND name = $2::text) AS s LIMIT 1`

// namesSQL reads the names of a run's steps.
const namesSQL = `
SELECT name FROM {steps} AS s WHERE {of run} AND id & 1048575 = 0 ORDER BY id`

// outputsSQL reads the results of a Map step's jobs that have completed.
const outputsSQL = `
SELECT coalesce(jsonb_agg(result ORDER BY id), '[]')::text FROM {steps}
WHERE id > $1::bigint AND id < $1::bigint + 1048576 AND state = 'completed'`

// oldSQL finds runs that have ended longer ago than an operator has said for all queues, or
// else than $1 microseconds; NULL: for ever. Those of the list $2 are left out.
const oldSQL = `
SELECT id FROM {runs} WHERE finished_at < statement_timestamp() - coalesce((SELECT retention FROM {queues} WHERE name = '*'), $1::bigint * interval '1 microsecond')
	AND NOT id = ANY (ARRAY(SELECT jsonb_array_elements_text($2::jsonb)::bigint))
ORDER BY finished_at, id LIMIT {limit} FOR UPDATE SKIP LOCKED`

// forgetStepsSQL removes steps of runs, $1, that have ended: five thousand at most. It
// returns how many.
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

// forgetRunsSQL removes runs, $1, that have ended and have no steps left.
const forgetRunsSQL = `
WITH gone AS (
	DELETE FROM {runs} WHERE id = ANY (ARRAY(
		SELECT id FROM {runs} WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text($1::jsonb)::bigint)) AND finished_at IS NOT NULL FOR UPDATE SKIP LOCKED))
		AND (SELECT true FROM {steps} AS s WHERE s.id >= {runs}.id << 30 AND s.id < ({runs}.id + 1) << 30 LIMIT 1) IS NULL
	RETURNING 1
)
SELECT count(*) FROM gone`
