, lost AS MATERIALIZED (
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
	RETURNING 1
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
SELECT 0, 0 {dropped} UNION ALL
SELECT (SELECT count(*) FROM back), (SELECT count(*) FROM gone) WHERE (SELECT count(*) FROM told) >= 0
