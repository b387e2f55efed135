-- Passes the job unless it was enqueued before. The emitter is $2, the event is at position $3, and
-- the call has number $4. It locks the row of emitted_through, so that no concurrent Raise removes
-- the rows below. A job that a trigger drops has the id -1. The id -2 means that the key is not to be
-- seen: a trigger drops it, or a concurrent transaction has just committed it.
{enqueue_given}, through AS MATERIALIZED (
	SELECT position FROM {emitted_through} WHERE emitter = $2::text FOR SHARE
), passed AS (
	INSERT INTO {emitted} (emitter, position, n)
	SELECT $2::text, $3::bigint, $4::int WHERE NOT EXISTS (SELECT FROM through WHERE position >= $3::bigint)
	ON CONFLICT (emitter, position, n) DO NOTHING
	RETURNING 1
), {enqueue_new EXISTS (SELECT FROM passed)}
UNION ALL SELECT 1, -1 FROM passed WHERE NOT EXISTS (SELECT FROM new)
UNION ALL SELECT 1, -2 WHERE NOT EXISTS (SELECT FROM passed) AND NOT EXISTS (SELECT FROM through WHERE position >= $3::bigint)
	AND NOT EXISTS (SELECT FROM {emitted} WHERE emitter = $2::text AND position = $3::bigint AND n = $4::int)
