INSERT INTO {dead_letters} AS l (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts, retry_at, replay, forget, received)
SELECT $1::text, e.global_position, e.aggregate_type, e.aggregate_id, e.event_id, e.event_type, 0, clock_timestamp(), true, true, true
FROM {events} AS e
WHERE e.aggregate_type = $2::text AND e.aggregate_id = $3::text AND e.global_position <= $4::bigint AND {not_in_doubt}
ON CONFLICT (consumer_name, global_position) DO UPDATE SET retry_at = excluded.retry_at, replay = true, forget = true, updated_at = clock_timestamp()
