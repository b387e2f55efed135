-- Notifies of a job that is due now, as enqueue.sql does.
, told AS MATERIALIZED (
	SELECT pg_notify({new_jobs}, new.queue) FROM new
	WHERE EXISTS (SELECT FROM {wanted} AS w WHERE w.queue = new.queue AND w.until > statement_timestamp())
)
SELECT id FROM new WHERE (SELECT count(*) FROM told) >= 0
