-- Counts up to the caps of the queue and of all queues; NULL means no cap.
SELECT greatest(0, least(
	$2::bigint - CASE WHEN $2::bigint IS NOT NULL THEN (SELECT count(*) FROM {jobs} WHERE state = 'running' AND queue = $1::text) END,
	$3::bigint - CASE WHEN $3::bigint IS NOT NULL THEN (SELECT count(*) FROM {jobs} WHERE state = 'running') END))
