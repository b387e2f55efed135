	SELECT o.global_position AS a, o.attempts AS b,
		o.replay::int + 2 * o.forget::int + 4 * (o.order_key IS NULL)::int + 8 * o.received::int AS c FROM (SELECT DISTINCT type, id FROM asked) AS a
	CROSS JOIN LATERAL ({first_of a.type, a.id} LIMIT (SELECT {retries})) AS o
	WHERE o.order_type = a.type AND o.order_id = a.id
