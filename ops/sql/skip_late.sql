WITH gone AS (
	DELETE FROM {gap_skips}
	WHERE consumer_name = $1::text AND state = 'open' AND gap_position <= $2::bigint AND gap_end >= $2::bigint
	RETURNING *
)
INSERT INTO {gap_skips} (consumer_name, worker_id, gap_position, gap_end, missing, state,
	skip_to_position, highest_visible_position, first_seen_at, closed_at)
SELECT consumer_name, CASE WHEN part.state = 'open' THEN worker_id ELSE $3::uuid END, part.first, part.last, part.last - part.first + 1, part.state,
	skip_to_position, highest_visible_position, first_seen_at, CASE WHEN part.state <> 'open' THEN clock_timestamp() END
FROM gone CROSS JOIN LATERAL (VALUES
	(gap_position, $2::bigint - 1, 'open'), ($2::bigint, $2::bigint, 'late'), ($2::bigint + 1, gap_end, 'open')
) AS part (first, last, state)
WHERE part.first <= part.last
