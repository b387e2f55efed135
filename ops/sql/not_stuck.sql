SELECT n.worker_id, s.stuck, {heartbeat_age}
FROM {assignments} AS a JOIN {nodes} AS n ON n.worker_id = a.worker_id
CROSS JOIN LATERAL (
	SELECT CASE jsonb_typeof(c->'Stuck') WHEN 'number' THEN (c->>'Stuck')::numeric::bigint END AS stuck, c ? 'LastError' AS troubled
	FROM jsonb_array_elements(CASE jsonb_typeof(n.status->'Consumers') WHEN 'array' THEN n.status->'Consumers' END) AS c
	WHERE c->>'Name' = a.consumer_name
) AS s
WHERE a.consumer_name = $1::text AND n.heartbeat_at > clock_timestamp() - {timeout_or_30s}
	AND s.stuck <> $2::bigint AND (s.stuck > 0 OR NOT s.troubled)
LIMIT 1
