WITH page AS MATERIALIZED (
	SELECT * FROM ({parts}) AS j ORDER BY id DESC LIMIT {limit}
)
SELECT p.id, p.kind, p.queue, p.state, p.priority, {time_or_never p.run_at}, {time_or_never p.good_until}, p.args::text, p.meta::text, coalesce(p.unique_key, ''), {time p.created_at},
	p.attempt, p.failures, p.resets, coalesce(p.max_attempts, 0), p.max_resets, p.claimed_by::text, {time p.started_at}, {time p.cancel_at}, {time p.finished_at},
	CASE WHEN p.finished_at IS NULL THEN coalesce(a.code, '') ELSE coalesce(p.code, '') END,
	CASE WHEN p.finished_at IS NULL THEN coalesce(a.error, '') ELSE coalesce(p.error, '') END, p.result::text, {time p.acknowledged_at}
FROM page AS p LEFT JOIN LATERAL (
	SELECT code, error FROM {attempts} WHERE job_id = p.id AND p.finished_at IS NULL AND outcome IN ('error', 'lost') ORDER BY attempt DESC LIMIT 1
) AS a ON true
ORDER BY p.id DESC
