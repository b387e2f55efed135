-- Selects the queues with finished jobs. It finds each queue by one index lookup.
WITH RECURSIVE q AS (
	(SELECT queue FROM {history} ORDER BY queue LIMIT 1)
	UNION ALL
	SELECT next.queue FROM q CROSS JOIN LATERAL (SELECT queue FROM {history} WHERE queue > q.queue ORDER BY queue LIMIT 1) AS next
)
SELECT queue FROM q
