-- Makes steps of a run, $2, begin again, and continues the run.
WITH given AS MATERIALIZED (
	SELECT * FROM jsonb_to_recordset($2::jsonb) AS g(id bigint, state text, need int, may_fail int, blamed boolean)
), again AS (
	UPDATE {steps} AS s SET state = g.state, need = g.need, may_fail = g.may_fail, blamed = g.blamed, finished_at = NULL, code = NULL, error = NULL, result = NULL,
		job_id = CASE g.state WHEN 'enqueued' THEN {next_job} END
	FROM given AS g WHERE s.id = g.id AND s.id = ANY (ARRAY(SELECT id FROM given))
	RETURNING s.id, s.name, s.state, s.spec, s.job_id
), {enqueue again}
UPDATE {runs} SET state = 'running', finished_at = NULL, cancel_at = NULL, unfinished = (SELECT count(*) FROM again), bad = $3::int
WHERE id = $1::bigint AND (SELECT count(*) FROM notified) >= 0
