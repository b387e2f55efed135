WITH new AS (
	UPDATE {jobs} SET run_at = clock_timestamp() WHERE id = $1::bigint AND state = 'available' RETURNING id, queue
){notify}
