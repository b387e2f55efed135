-- The requests for retries, the first ones.
WITH asked AS MATERIALIZED (
	SELECT order_type AS type, order_id AS id FROM {dead_letters}
	WHERE consumer_name = $1::text AND retry_at IS NOT NULL
	ORDER BY retry_at, global_position LIMIT (SELECT {retries})
)
