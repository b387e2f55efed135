SELECT c.consumer_name, c.last_position,
	greatest((SELECT coalesce(max(global_position), 0) FROM {events}) - c.last_position, 0),
	coalesce((
		SELECT CASE WHEN isfinite(e.created_at) THEN least(greatest(extract(epoch FROM statement_timestamp() - e.created_at), 0), 3155760000) * 1000000 END
		FROM {events} AS e WHERE e.global_position > c.last_position ORDER BY e.global_position LIMIT 1), 0)::bigint, c.revision, {time c.updated_at}, {time c.paused_at}, c.paused_by, c.paused_reason, a.worker_id,
	(SELECT count(*) FROM {gap_skips} AS s WHERE s.consumer_name = c.consumer_name AND s.state = 'open'),
	(SELECT count(*) FROM {dead_letters} AS l WHERE l.consumer_name = c.consumer_name AND NOT l.replay),
	coalesce(a.partitions, 0), coalesce(c.partitions, 0), c.split_at IS NOT NULL, c.partition_key,
	CASE WHEN c.last_position = 9223372036854775807 THEN coalesce((
		SELECT o.detail->>'to' FROM {operations} AS o WHERE o.consumer_name = c.consumer_name AND o.operation = 'rename' ORDER BY o.id DESC LIMIT 1), '') ELSE '' END,
	c.effects @> '[{"after": 9223372036854775807}]', c.scope::text
FROM {checkpoints} AS c LEFT JOIN {assignments} AS a ON a.consumer_name = c.consumer_name
ORDER BY split_part(c.consumer_name, '#', 1) COLLATE "C", c.consumer_name COLLATE "C"
