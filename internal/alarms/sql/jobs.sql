-- Finds the name of each queue by one index lookup. Within a queue and a priority, the index of
-- available jobs has the earliest job first.
WITH RECURSIVE waiting(queue) AS (
	(SELECT queue FROM {jobs} WHERE state = 'available' ORDER BY queue LIMIT 1)
	UNION ALL
	SELECT (SELECT j.queue FROM {jobs} AS j WHERE j.state = 'available' AND j.queue > waiting.queue ORDER BY j.queue LIMIT 1) FROM waiting WHERE queue IS NOT NULL
), bad(queue) AS (
	(SELECT queue FROM {history} WHERE state = 'failed' AND acknowledged_at IS NULL ORDER BY queue LIMIT 1)
	UNION ALL
	SELECT (SELECT h.queue FROM {history} AS h WHERE h.state = 'failed' AND h.acknowledged_at IS NULL AND h.queue > bad.queue ORDER BY h.queue LIMIT 1)
	FROM bad WHERE queue IS NOT NULL
), paused AS (
	SELECT name, coalesce(paused_by, '') AS by, coalesce(paused_reason, '') AS reason FROM {queues} WHERE paused_at IS NOT NULL
), due AS (
	SELECT queue, (
		SELECT min(first.run_at) FROM generate_series(1, 9) AS p CROSS JOIN LATERAL (
			SELECT j.run_at FROM {jobs} AS j WHERE j.state = 'available' AND j.queue = waiting.queue AND j.priority = p::smallint ORDER BY j.run_at LIMIT 1
		) AS first) AS since
	FROM waiting WHERE queue IS NOT NULL AND NOT EXISTS (SELECT FROM paused WHERE name IN (queue, '*'))
), failed AS (
	SELECT queue, (SELECT count(*) FROM (SELECT FROM {history} AS h WHERE h.state = 'failed' AND h.acknowledged_at IS NULL AND h.queue = bad.queue LIMIT {most}) AS counted) AS n
	FROM bad WHERE queue IS NOT NULL
)
SELECT kind, name, by, reason, n FROM (
	SELECT 1 AS place, 'paused' AS kind, name, by, reason, 0::bigint AS n FROM paused
	UNION ALL SELECT 2, 'due', queue, '', '', {waited} FROM due WHERE since < statement_timestamp() - $1::bigint * interval '1 microsecond'
	UNION ALL SELECT 3, 'failed', queue, '', '', n FROM failed
	UNION ALL SELECT 4, 'overdue', name, '', '', {waited} FROM (SELECT name, next_at AS since FROM {schedules}) AS next
		WHERE since < statement_timestamp() - $1::bigint * interval '1 microsecond'
	UNION ALL SELECT 5, 'paused-schedule', name, by, reason, {waited}
		FROM (SELECT name, paused_at AS since, coalesce(paused_by, '') AS by, coalesce(paused_reason, '') AS reason FROM {schedules} WHERE paused_at IS NOT NULL) AS stopped
) AS found ORDER BY place, name COLLATE "C"
