-- The events of an aggregate that the unit $1 has passed, or that it passes again up to position $4. Of
-- those that were late, or older than the records of the scope, it is unknown which build passed them.
SELECT e.global_position,
	e.global_position <= coalesce(c.scope_since, c.last_position) OR EXISTS (
		SELECT FROM {gap_skips} AS s
		WHERE s.consumer_name = $1::text AND s.state = 'late' AND s.gap_position <= e.global_position AND s.gap_end >= e.global_position),
	coalesce(c.scope_since, 0), l.global_position IS NOT NULL, coalesce(l.replay, false)
FROM {events} AS e JOIN {checkpoints} AS c ON c.consumer_name = $1::text
LEFT JOIN {dead_letters} AS l ON l.consumer_name = $1::text AND l.global_position = e.global_position
WHERE e.aggregate_type = $2::text AND e.aggregate_id = $3::text AND e.global_position <= greatest(c.last_position, $4::bigint) AND {not_in_doubt}
ORDER BY e.global_position
