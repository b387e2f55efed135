-- Inserts the given jobs for which the argument is true.
new AS (
	INSERT INTO {jobs} (id, kind, queue, priority, run_at, good_until, args, meta, max_attempts, max_resets, unique_key, until_start)
	SELECT id, kind, coalesce(queue, 'default'), coalesce(priority, 5), coalesce(at, clock_timestamp() + coalesce(delay, 0) * interval '1 microsecond'),
		good_until, CASE WHEN null_args THEN 'null' ELSE coalesce(args, '{}') END, meta, max_attempts, coalesce(max_resets, 5), unique_key, coalesce(until_start, false)
	FROM given WHERE {argument} ORDER BY unique_key COLLATE "C", n
	ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL DO NOTHING
	RETURNING id, queue
), told AS MATERIALIZED (
	SELECT pg_notify({new_jobs}, q.queue) FROM (SELECT DISTINCT queue FROM new) AS q
	WHERE EXISTS (SELECT FROM {wanted} AS w WHERE w.queue = q.queue AND w.until > statement_timestamp())
)
SELECT g.n, g.id FROM given AS g JOIN new USING (id) WHERE (SELECT count(*) FROM told) >= 0
