WITH target AS MATERIALIZED (
	SELECT id, state FROM {jobs} WHERE id = $1::bigint FOR UPDATE
), gone AS (
	DELETE FROM {jobs} AS j USING target AS t WHERE j.id = t.id AND t.state <> 'running' RETURNING j.*
), past AS (
	INSERT INTO {history} (id, kind, queue, priority, run_at, good_until, args, meta, created_at, attempt, failures, resets, max_attempts, max_resets, cancel_at, state)
	SELECT id, kind, queue, priority, run_at, good_until, args, meta, created_at, attempt, failures, resets, max_attempts, max_resets, clock_timestamp(), 'cancelled' FROM gone
	RETURNING 1
), told AS MATERIALIZED (
	SELECT pg_notify({ends}, id::text) FROM gone WHERE awaited
), asked AS (
	UPDATE {jobs} AS j SET cancel_at = coalesce(j.cancel_at, clock_timestamp()) FROM target AS t WHERE j.id = t.id AND t.state = 'running'
)
SELECT '' {dropped} UNION ALL
SELECT coalesce((SELECT state FROM target), '') WHERE (SELECT count(*) FROM told) >= 0
