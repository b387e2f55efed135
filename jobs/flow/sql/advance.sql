-- Records the ends of steps and their effect on dependents, once: it changes a state only if it is
-- still the state that it has read. A step has ended if its job is in the history or in neither
-- table. A statement may also have ended it without a job. Such a step has no finished_at until its
-- end is recorded.
--
-- A step is skipped when too many of its dependencies have ended badly and one of them has failed.
-- If none has failed, the step is just not needed. It is then skipped only after all dependencies
-- have ended, since one may still fail. need plus may_fail is the number of dependencies that have
-- not ended.
--
-- The statement returns the steps that it has moved, with their state. These are steps that are
-- enqueued now, and steps to be recorded or spread next. It also returns held steps. For each run
-- that it has ended, it returns a row in place of a step.
WITH {given}, seen AS MATERIALIZED (
	SELECT s.* FROM mine AS g CROSS JOIN LATERAL (SELECT id, state, job_id, finished_at FROM {steps} WHERE id = g.id LIMIT 1) AS s
	WHERE s.finished_at IS NULL AND s.state NOT IN ('waiting', 'ready', 'spread')
), gone AS MATERIALIZED (
	SELECT s.id, s.state AS was, s.job_id, coalesce(CASE WHEN h.state = 'cancelled' AND h.code = 'SKIPPED' THEN 'skipped' ELSE h.state END, 'failed') AS state,
		CASE WHEN h.state IS NULL THEN 'FORGOTTEN' ELSE h.code END AS code, CASE WHEN h.state IS NULL THEN 'its job is neither unfinished nor in the history' ELSE h.error END AS error, h.result
	FROM seen AS s LEFT JOIN LATERAL (SELECT state, code, error, result FROM {history} WHERE {its_job} LIMIT 1) AS h ON true
	WHERE s.state <> 'enqueued' OR h.state IS NOT NULL OR (SELECT true FROM {jobs} WHERE id = s.job_id LIMIT 1) IS NULL
), effect AS (
	UPDATE {steps} AS s SET finished_at = clock_timestamp(),
		state = CASE s.state WHEN 'enqueued' THEN g.state ELSE s.state END, code = CASE s.state WHEN 'enqueued' THEN g.code ELSE s.code END,
		error = CASE s.state WHEN 'enqueued' THEN g.error ELSE s.error END, result = CASE s.state WHEN 'enqueued' THEN g.result ELSE s.result END
	FROM gone AS g
	WHERE s.id = g.id AND s.id = ANY (ARRAY(SELECT id FROM gone)) AND s.finished_at IS NULL AND s.state = g.was AND s.job_id IS NOT DISTINCT FROM g.job_id
	RETURNING s.id, s.leaf, s.dependents, s.result, {effects}
), counts AS MATERIALIZED (
	SELECT id, count(*) FILTER (WHERE ok)::int AS good, count(*) FILTER (WHERE NOT ok)::int AS bad, bool_or(blamed AND NOT ok) AS blamed
	FROM (
		SELECT ((e.id >> 30) << 30) | (d.n << 20) AS id, e.failed AS blamed, {meaning} AS ok
		FROM effect AS e CROSS JOIN LATERAL jsonb_to_recordset(e.dependents) AS d(n bigint, "on" text, "when" jsonb)) AS d
	GROUP BY id
), moved AS (
	UPDATE {steps} AS s SET need = s.need - t.good, may_fail = s.may_fail - t.bad, blamed = s.blamed OR t.blamed,
		state = CASE
			WHEN s.need - t.good <= 0 THEN CASE WHEN s.state = 'spread' THEN 'completed' WHEN s.list_id IS NOT NULL THEN 'ready' ELSE 'enqueued' END
			WHEN s.may_fail - t.bad < 0 AND s.state = 'spread' THEN 'failed'
			WHEN s.may_fail - t.bad < 0 AND (s.blamed OR t.blamed OR s.need - t.good + s.may_fail - t.bad = 0) THEN 'skipped'
			ELSE s.state END,
		job_id = CASE WHEN s.need - t.good <= 0 AND s.list_id IS NULL THEN {next_job} ELSE s.job_id END
	FROM counts AS t
	WHERE s.id = t.id AND s.id = ANY (ARRAY(SELECT id FROM counts)) AND s.state IN ('waiting', 'spread')
	RETURNING s.id, s.name, s.state, s.spec, s.job_id
), {enqueue moved}, {concluded}
SELECT id, state FROM moved WHERE state NOT IN ('waiting', 'spread') AND (SELECT count(*) FROM notified) >= 0 AND (SELECT count(*) FROM ends) >= 0
{held}
UNION ALL SELECT id, 'run ' || json_build_object('Flow', flow, 'State', state, 'Took', took) FROM counted WHERE ended
