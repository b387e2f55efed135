WITH new AS (
	INSERT INTO {jobs} (kind, queue, priority, good_until, args, meta, max_attempts, max_resets)
	SELECT kind, queue, priority, CASE WHEN good_until > clock_timestamp() THEN good_until END, args, meta, max_attempts, max_resets
	FROM {history} WHERE id = $1::bigint
	RETURNING id, queue
){notify}
