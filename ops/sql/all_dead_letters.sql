SELECT consumer_name, global_position, aggregate_type, aggregate_id, coalesce(order_key, ''), event_id, event_type,
	error, attempts, replay, retry_at, created_at, updated_at, NULL::bytea, NULL::text
FROM {dead_letters}
ORDER BY split_part(consumer_name, '#', 1) COLLATE "C", global_position
