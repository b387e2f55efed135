-- Three columns that summarize a consumer's dead letters. The first is the number of aggregates or
-- keys with dead letters that are not replayed. The second reports whether there are dead letters
-- at all, the third whether some are to be retried. The count goes from one aggregate or key to the
-- next.
(
	WITH RECURSIVE a AS (
		(SELECT (NOT replay)::int AS failed, replay::int AS replayed, order_type AS type, order_id AS id FROM {dead_letters}
		WHERE consumer_name = $1::text ORDER BY order_type, order_id, global_position LIMIT 1)
		UNION ALL
		SELECT a.failed + (NOT o.replay)::int, a.replayed + o.replay::int, o.order_type, o.order_id FROM a CROSS JOIN LATERAL (
			SELECT order_type, order_id, replay FROM {dead_letters}
			WHERE consumer_name = $1::text AND (order_type, order_id) > (a.type, a.id)
			ORDER BY order_type, order_id, global_position LIMIT 1) AS o
		WHERE a.failed < {most_counted} AND a.replayed < {most_replays}
	) SELECT coalesce(max(failed), 0) FROM a),
	(SELECT order_type FROM {dead_letters}
	WHERE consumer_name = $1::text ORDER BY order_type, order_id, global_position LIMIT 1) IS NOT NULL,
	(SELECT retry_at FROM {dead_letters}
	WHERE consumer_name = $1::text AND retry_at IS NOT NULL ORDER BY retry_at, global_position LIMIT 1) IS NOT NULL
