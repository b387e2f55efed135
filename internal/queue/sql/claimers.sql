-- Selects the workers that have running jobs but no row. It finds each worker by one index lookup.
WITH RECURSIVE claimer AS (
	(SELECT queue, claimed_by FROM {jobs} WHERE state = 'running' ORDER BY queue, claimed_by LIMIT 1)
	UNION ALL
	SELECT next.* FROM claimer AS c CROSS JOIN LATERAL (
		SELECT queue, claimed_by FROM {jobs} WHERE state = 'running' AND (queue, claimed_by) > (c.queue, c.claimed_by)
		ORDER BY queue, claimed_by LIMIT 1) AS next
)
SELECT DISTINCT claimed_by::text FROM claimer WHERE claimed_by NOT IN (SELECT worker_id FROM {workers})
