-- Reads the newest gaps of each unit through an index. With "= ANY", only this index returns the
-- rows in the required order.
SELECT g.id, g.consumer_name, g.worker_id, g.gap_position, coalesce(g.gap_end, g.gap_position), coalesce(g.missing, 1), g.state, g.skip_to_position, {time g.first_seen_at}, {time g.closed_at}
FROM ({names}) AS u CROSS JOIN LATERAL (
	SELECT * FROM {gap_skips} AS s
	WHERE s.consumer_name = ANY (ARRAY[u.name]) AND s.id < $2::bigint{conditions}
	ORDER BY s.consumer_name DESC, s.id DESC LIMIT $3::bigint
) AS g
ORDER BY g.id DESC LIMIT $3::bigint
