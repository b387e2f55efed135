-- The dead letters at or after the order of the argument. The dead letters of the order itself come
-- first.
SELECT * FROM {dead_letters}
	WHERE consumer_name = $1::text AND (order_type, order_id) >= ({argument})
	ORDER BY order_type, order_id, global_position
