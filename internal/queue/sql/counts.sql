-- Finds each queue by one index lookup. It counts at most ten thousand rows of the queue's index
-- range.
WITH RECURSIVE waits AS (
	(SELECT queue, priority FROM {jobs} WHERE state = 'available' ORDER BY queue, priority LIMIT 1)
	UNION ALL
	SELECT next.* FROM waits AS w CROSS JOIN LATERAL (
		SELECT queue, priority FROM {jobs} WHERE state = 'available' AND (queue, priority) > (w.queue, w.priority)
		ORDER BY queue, priority LIMIT 1) AS next
), runs AS (
	(SELECT queue FROM {jobs} WHERE state = 'running' ORDER BY queue LIMIT 1)
	UNION ALL
	SELECT next.queue FROM runs AS r CROSS JOIN LATERAL (
		SELECT queue FROM {jobs} WHERE state = 'running' AND queue > r.queue ORDER BY queue LIMIT 1) AS next
), counted AS (
	SELECT queue, 'available' AS state, (SELECT count(*) FROM (
		SELECT FROM {jobs} AS j WHERE j.state = 'available' AND j.queue = w.queue AND j.priority = w.priority LIMIT 10001) AS c) AS n FROM waits AS w
	UNION ALL
	SELECT queue, 'running', (SELECT count(*) FROM (
		SELECT FROM {jobs} AS j WHERE j.state = 'running' AND j.queue = r.queue LIMIT 10001) AS c) FROM runs AS r
)
SELECT queue, state, sum(least(n, 10000))::bigint, bool_or(n > 10000) FROM counted GROUP BY queue, state ORDER BY queue, state
