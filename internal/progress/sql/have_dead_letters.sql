	SELECT a.n AS a, o.replay::int AS b, 0 AS c FROM jsonb_to_recordset($2::jsonb) AS a(n bigint, order_type text, order_id text)
	CROSS JOIN LATERAL ({first_of a.order_type, a.order_id} LIMIT (SELECT 1)) AS o
	WHERE o.order_type = a.order_type AND o.order_id = a.order_id
