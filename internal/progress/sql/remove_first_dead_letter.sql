WITH gone AS (
	DELETE FROM {dead_letters} WHERE consumer_name = $1::text AND global_position = $2::bigint RETURNING aggregate_type, aggregate_id
), kept AS (
	UPDATE {dead_letters} SET forget = false
	WHERE consumer_name = $1::text AND global_position <> $2::bigint AND global_position = ANY (ARRAY(
		SELECT o.global_position FROM gone CROSS JOIN LATERAL (
			SELECT global_position, forget FROM {dead_letters}
			WHERE consumer_name = $1::text AND (aggregate_type, aggregate_id) >= (gone.aggregate_type, gone.aggregate_id) AND (aggregate_type, aggregate_id) <= (gone.aggregate_type, gone.aggregate_id)
			ORDER BY aggregate_type, aggregate_id, global_position LIMIT (SELECT 9223372036854775807)) AS o
		WHERE o.forget))
)
SELECT FROM gone
