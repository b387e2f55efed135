INSERT INTO {dead_letters} AS d (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, error, attempts, order_key, retry_at, replay)
SELECT $1::text, l.position, l.type, l.id, l.event_id, l.event_type, l.error, l.attempts, CASE WHEN l.order_type = '' THEN l.order_id END, o.retry_at,
	l.error IS NULL AND coalesce(o.replay, false)
FROM jsonb_to_recordset($2::jsonb) AS l(position bigint, type text, id text, event_id uuid, event_type text, error text, attempts int, order_type text, order_id text)
LEFT JOIN LATERAL ({first_of l.order_type, l.order_id} LIMIT (SELECT 1)) AS o ON o.order_type = l.order_type AND o.order_id = l.order_id
ON CONFLICT (consumer_name, global_position) DO UPDATE
SET error = excluded.error, attempts = d.attempts + excluded.attempts, updated_at = clock_timestamp()
