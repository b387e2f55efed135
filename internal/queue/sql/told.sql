-- Notifies the processes that await the ended jobs. It also notifies the processes that wait for
-- jobs of the queues to which jobs return.
told AS MATERIALIZED (
	SELECT pg_notify({ends}, id::text) FROM gone WHERE awaited
	UNION ALL
	SELECT pg_notify({new_jobs}, q.queue) FROM (SELECT DISTINCT queue FROM back) AS q
	WHERE EXISTS (SELECT FROM {wanted} AS w WHERE w.queue = q.queue AND w.until > statement_timestamp())
)
