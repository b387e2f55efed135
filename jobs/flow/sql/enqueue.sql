-- Enqueues the jobs of the enqueued steps in the argument, and notifies workers as package queue
-- does. The Meta of a job names its step.
new AS (
	INSERT INTO {jobs} (id, kind, queue, priority, run_at, args, meta, max_attempts, max_resets)
	SELECT s.job_id, x.kind, coalesce(x.queue, 'default'), coalesce(x.priority, 5), clock_timestamp() + coalesce(x.delay, 0) * interval '1 microsecond',
		coalesce(s.spec->'args', '{}'), jsonb_build_object('flow_run', s.id >> 30, 'flow_step', s.id, 'step', s.name), x.max_attempts, coalesce(x.max_resets, 5)
	FROM {argument} AS s CROSS JOIN LATERAL jsonb_to_record(s.spec)
		AS x(kind text, queue text, priority smallint, delay bigint, max_attempts int, max_resets int)
	WHERE s.state = 'enqueued'
	RETURNING queue
), notified AS MATERIALIZED (
	SELECT pg_notify({new_jobs}, q.queue) FROM (SELECT DISTINCT queue FROM new) AS q
	WHERE EXISTS (SELECT FROM {wanted} AS w WHERE w.queue = q.queue AND w.until > statement_timestamp())
)
