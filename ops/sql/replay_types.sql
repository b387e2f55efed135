INSERT INTO {dead_letters} AS l (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts, retry_at, replay, forget, received)
SELECT $1::text, e.global_position, e.aggregate_type, e.aggregate_id, e.event_id, e.event_type, 0, clock_timestamp(), true, true, true
FROM {events} AS e JOIN (
	SELECT DISTINCT m.aggregate_type, m.aggregate_id FROM {events} AS m
	WHERE m.global_position = ANY (ARRAY(SELECT jsonb_array_elements_text($2::jsonb)::bigint))
) AS of ON of.aggregate_type = e.aggregate_type AND of.aggregate_id = e.aggregate_id
WHERE e.global_position <= $3::bigint AND {not_in_doubt}
ON CONFLICT (consumer_name, global_position) DO UPDATE SET retry_at = excluded.retry_at, replay = true, forget = true, updated_at = clock_timestamp()
