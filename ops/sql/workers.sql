-- Returns equal lists of consumers once, in the row of the first worker that has the list. A
-- hundred workers may have code for the same thousand consumers.
SELECT n.worker_id, coalesce(n.hostname, ''), coalesce(n.pid, 0), coalesce(n.build, ''), coalesce(n.protocol, 0),
	{heartbeat_age}, (extract(epoch FROM {timeout_or_0}) * 1000000)::bigint, {time n.created_at}, {time n.drain_requested_at},
	coalesce(n.status->'Leader' = 'true'::jsonb, false), n.status::text, n.able, CASE WHEN row_number() OVER (PARTITION BY n.able ORDER BY n.heartbeat_at DESC, n.worker_id) = 1 THEN array_to_string(n.consumers, chr(10)) END, n.partitions::text,
	(SELECT json_agg(a.consumer_name ORDER BY a.consumer_name COLLATE "C") FROM {assignments} AS a WHERE a.worker_id = n.worker_id)::text
FROM (SELECT *, hashtextextended(array_to_string(consumers, chr(10)), 0) AS able FROM {nodes}) AS n ORDER BY n.heartbeat_at DESC, n.worker_id
