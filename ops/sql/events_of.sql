-- The events of an aggregate that the unit $1 has passed, or that it passes again up to position $4. Of
-- those that were late, or older than the records of the scope, it is unknown which build passed them.
WITH late AS MATERIALIZED (
	SELECT gap_position, gap_end FROM {gap_skips} WHERE consumer_name = $1::text AND state = 'late'
)
SELECT e.global_position,
	e.global_position <= coalesce(c.scope_since, c.last_position) OR EXISTS (
		SELECT FROM late WHERE gap_position <= e.global_position AND gap_end >= e.global_position),
	coalesce(c.scope_since, 0), l.global_position IS NOT NULL, coalesce(l.replay, false)
FROM {events} AS e JOIN {checkpoints} AS c ON c.consumer_name = $1::text
LEFT JOIN {dead_letters} AS l ON l.consumer_name = $1::text AND l.global_position = e.global_position
WHERE e.aggregate_type = $2::text AND e.aggregate_id = $3::text AND e.global_position <= greatest(c.last_position, $4::bigint) AND {not_in_doubt}
ORDER BY e.global_position
