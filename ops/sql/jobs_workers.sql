SELECT n.worker_id, coalesce(n.hostname, ''), coalesce(n.pid, 0), coalesce(n.build, ''), n.protocol,
	{heartbeat_age}, (extract(epoch FROM {timeout_or_0}) * 1000000)::bigint, {time n.created_at}, {time n.drain_requested_at},
	coalesce(n.status->'Leader' = 'true'::jsonb, false), n.status::text, to_json(n.kinds)::text
FROM {workers} AS n ORDER BY n.heartbeat_at DESC, n.worker_id
