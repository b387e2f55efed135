-- Finds the name of each queue by one index lookup. It counts at most {most} jobs for each number.
-- Within a priority, the index has due jobs first.
WITH RECURSIVE of0(queue) AS (
	(SELECT queue FROM {jobs} AS j WHERE state = 'available' ORDER BY queue LIMIT 1)
	UNION ALL
	SELECT (SELECT queue FROM {jobs} AS j WHERE state = 'available' AND j.queue > of0.queue ORDER BY queue LIMIT 1) FROM of0 WHERE queue IS NOT NULL
), of1(queue) AS (
	(SELECT queue FROM {jobs} AS j WHERE state = 'running' ORDER BY queue LIMIT 1)
	UNION ALL
	SELECT (SELECT queue FROM {jobs} AS j WHERE state = 'running' AND j.queue > of1.queue ORDER BY queue LIMIT 1) FROM of1 WHERE queue IS NOT NULL
), of2(queue) AS (
	(SELECT queue FROM {history} AS j WHERE state <> 'completed' ORDER BY queue LIMIT 1)
	UNION ALL
	SELECT (SELECT queue FROM {history} AS j WHERE state <> 'completed' AND j.queue > of2.queue ORDER BY queue LIMIT 1) FROM of2 WHERE queue IS NOT NULL
), names(name) AS (
	SELECT '*' UNION SELECT name FROM {queues}
	WHERE paused_at IS NOT NULL OR max_running IS NOT NULL OR retention IS NOT NULL UNION SELECT queue FROM of0 WHERE queue IS NOT NULL UNION SELECT queue FROM of1 WHERE queue IS NOT NULL UNION SELECT queue FROM of2 WHERE queue IS NOT NULL
)
SELECT n.name, {time s.paused_at}, s.paused_by, s.paused_reason, s.max_running, {retention},
	{in_lanes >},
	{in_lanes <=},
	{counted SELECT FROM {jobs} AS j WHERE state = 'running' AND j.queue = n.name},
	{counted SELECT FROM {history} AS j WHERE state = 'failed' AND state <> 'completed' AND j.queue = n.name},
	{counted SELECT FROM {history} AS j WHERE state = 'failed' AND acknowledged_at IS NULL AND j.queue = n.name},
	(SELECT coalesce({age min(first.run_at)}, 0)
	FROM generate_series(1, 9) AS p CROSS JOIN LATERAL (SELECT j.run_at FROM {jobs} AS j
		WHERE state = 'available' AND j.queue = n.name AND priority = p::smallint ORDER BY run_at LIMIT 1) AS first)
FROM names AS n LEFT JOIN {queues} AS s ON s.name = n.name
ORDER BY n.name <> '*', n.name COLLATE "C"
