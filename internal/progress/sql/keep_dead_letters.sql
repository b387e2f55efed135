UPDATE {dead_letters}
SET retry_at = NULL, replay = false, updated_at = clock_timestamp(),
	error = CASE WHEN global_position = $2::bigint THEN $3::text ELSE error END,
	attempts = attempts + CASE WHEN global_position = $2::bigint THEN 1 ELSE 0 END
WHERE consumer_name = $1::text AND global_position = ANY (ARRAY(
	SELECT o.global_position FROM (
		SELECT order_type AS type, order_id AS id FROM {dead_letters}
		WHERE consumer_name = $1::text AND global_position = $2::bigint) AS a
	CROSS JOIN LATERAL (
		SELECT global_position FROM {dead_letters}
		WHERE consumer_name = $1::text AND (order_type, order_id) >= (a.type, a.id) AND (order_type, order_id) <= (a.type, a.id)
		ORDER BY order_type, order_id, global_position LIMIT (SELECT 9223372036854775807)) AS o))
