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
	WHERE a.job_id = ANY (ARRAY(SELECT id FROM back WHERE attempt > {most_attempts})) AND a.job_id = b.id AND a.attempt = b.attempt - {most_attempts}
)
SELECT id, state FROM past WHERE (SELECT count(*) FROM told) >= 0 AND {bounded} UNION ALL SELECT id, 'available' FROM back
UNION ALL SELECT 0, '' {dropped}
