-- Joins the event of the dead letter l.
LEFT JOIN LATERAL (SELECT * FROM {events} AS e WHERE e.global_position = l.global_position LIMIT 1) AS e ON true
