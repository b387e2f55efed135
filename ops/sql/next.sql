SELECT c.consumer_name, c.last_position, coalesce(n.late, false), coalesce(n.position, 0), coalesce(n.aggregate_type, ''), coalesce(n.aggregate_id, ''),
	coalesce(n.event_id, '00000000-0000-0000-0000-000000000000'::uuid), coalesce(n.event_type, '')
FROM ({names}) AS u
JOIN {checkpoints} AS c ON c.consumer_name = u.name AND c.split_at IS NULL
LEFT JOIN LATERAL (
	SELECT * FROM (
		(SELECT true AS late, e.global_position AS position, e.aggregate_type, e.aggregate_id, e.event_id, e.event_type
		FROM {gap_skips} AS s CROSS JOIN LATERAL (
			SELECT * FROM {events}
			WHERE global_position BETWEEN s.gap_position AND s.gap_end ORDER BY global_position LIMIT 1
		) AS e
		WHERE s.consumer_name = c.consumer_name AND s.state = 'open' ORDER BY e.global_position LIMIT 1)
		UNION ALL
		(SELECT false, e.global_position, e.aggregate_type, e.aggregate_id, e.event_id, e.event_type FROM {events} AS e
		WHERE e.global_position > c.last_position ORDER BY e.global_position LIMIT 1)
	) AS found ORDER BY NOT late LIMIT 1
) AS n ON true
ORDER BY c.consumer_name COLLATE "C"
