-- The aggregate of the first event of the type $1 above position $2 and up to $3, or of the first event at all.
SELECT aggregate_id FROM (
	(SELECT aggregate_id, 1 AS n FROM {events} WHERE aggregate_type = $1::text AND global_position > $2::bigint AND global_position <= $3::bigint ORDER BY global_position LIMIT 1)
	UNION ALL
	(SELECT aggregate_id, 2 FROM {events} WHERE aggregate_type = $1::text AND global_position <= $2::bigint ORDER BY global_position LIMIT 1)
) AS drawn ORDER BY n LIMIT 1
