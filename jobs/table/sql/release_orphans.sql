-- Queues rows again that this worker has claimed without an answer.
WITH mine AS MATERIALIZED (
	SELECT t.{id} AS id FROM {table} AS t
	WHERE t.{state} = 'processing' AND t.{worker_hostname} = $2::text AND NOT t.{id} = ANY ($1::text::bigint[])
	FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE {table} AS t SET {state} = 'queued', {started_at} = NULL
WHERE t.{id} = ANY (ARRAY(SELECT id FROM mine))
RETURNING t.{id}
