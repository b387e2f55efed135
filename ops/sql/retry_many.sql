-- Does an index lookup for each dead letter, whatever the planner's statistics say. A self-join of
-- the dead letters takes minutes for 10,000 of them.
UPDATE {dead_letters} SET retry_at = clock_timestamp(), updated_at = clock_timestamp()
WHERE consumer_name = $1::text AND global_position = ANY (ARRAY(
	SELECT l.global_position FROM (
		SELECT DISTINCT l.order_type, l.order_id FROM unnest($2::text::bigint[]) AS p CROSS JOIN LATERAL (
			SELECT order_type, order_id FROM {dead_letters} WHERE consumer_name = $1::text AND global_position = p LIMIT 1
		) AS l
	) AS k CROSS JOIN LATERAL (
		SELECT global_position FROM {dead_letters}
		WHERE consumer_name = ANY (ARRAY[$1::text]) AND order_type = k.order_type AND order_id = k.order_id
		ORDER BY consumer_name, order_type, order_id, global_position LIMIT 9223372036854775807
	) AS l))
