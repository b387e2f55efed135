-- Selects queues that have due jobs but no living worker that claims from them. A worker whose
-- status does not list queues may claim from any. A worker without kinds claims from none.
WITH RECURSIVE waits AS (
	(SELECT queue FROM {jobs} WHERE state = 'available' ORDER BY queue LIMIT 1)
	UNION ALL
	SELECT next.queue FROM waits AS w CROSS JOIN LATERAL (SELECT queue FROM {jobs} WHERE state = 'available' AND queue > w.queue ORDER BY queue LIMIT 1) AS next
)
SELECT w.queue FROM waits AS w
WHERE NOT EXISTS (SELECT FROM {workers} AS o WHERE coalesce(cardinality(o.kinds), 1) > 0 AND {lives}
		AND (jsonb_typeof(o.status->'Queues') IS DISTINCT FROM 'array' OR o.status->'Queues' @> jsonb_build_array(jsonb_build_object('Name', w.queue))))
	AND NOT EXISTS (SELECT FROM {queues} WHERE name IN (w.queue, '*') AND paused_at IS NOT NULL)
	AND EXISTS (SELECT FROM generate_series(1, 9) AS p CROSS JOIN LATERAL (
		SELECT FROM {jobs} WHERE state = 'available' AND queue = w.queue AND priority = p::smallint AND run_at <= statement_timestamp() ORDER BY run_at, id LIMIT 1) AS j)
LIMIT 100
