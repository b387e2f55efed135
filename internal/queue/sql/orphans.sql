-- Selects the emitters without a checkpoint, or all emitters if there are no checkpoints. No worker
-- removes their rows.
WITH RECURSIVE of AS (
	(SELECT emitter FROM {emitted} ORDER BY emitter LIMIT 1)
	UNION ALL
	SELECT next.emitter FROM of CROSS JOIN LATERAL (SELECT emitter FROM {emitted} AS e WHERE e.emitter > of.emitter ORDER BY emitter LIMIT 1) AS next
)
SELECT emitter FROM of WHERE NOT {known} LIMIT 100
