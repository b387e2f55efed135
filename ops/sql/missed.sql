SELECT global_position, aggregate_type, aggregate_id FROM {events} AS e
WHERE aggregate_type = ANY (ARRAY(SELECT jsonb_array_elements_text($2::jsonb))) AND global_position <= $3::bigint AND {not_in_doubt}
	AND global_position > (SELECT coalesce(scope_since, last_position) FROM {checkpoints} WHERE consumer_name = $1::text)
	AND NOT EXISTS (
		SELECT FROM {gap_skips} AS s
		WHERE s.consumer_name = $1::text AND s.state = 'late' AND s.gap_position <= e.global_position AND s.gap_end >= e.global_position)
ORDER BY global_position
