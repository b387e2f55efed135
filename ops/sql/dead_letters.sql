SELECT l.consumer_name, l.global_position, l.aggregate_type, l.aggregate_id, coalesce(l.order_key, ''), l.event_id, l.event_type,
	l.error, l.attempts, l.replay, {time l.retry_at}, {time l.created_at}, {time l.updated_at}, {payload}
FROM (
	SELECT l.* FROM ({names}) AS u CROSS JOIN LATERAL (
		SELECT * FROM {dead_letters} AS l WHERE l.consumer_name = ANY (ARRAY[u.name]){conditions}
		ORDER BY l.consumer_name, l.global_position LIMIT $2::bigint
	) AS l
	ORDER BY l.global_position LIMIT $2::bigint
) AS l{event}
ORDER BY l.global_position
