DELETE FROM {gap_skips} WHERE id IN (
	SELECT id FROM {gap_skips}
	WHERE state <> 'open' AND closed_at < clock_timestamp() - make_interval(secs => $1::numeric / 1000)
	ORDER BY closed_at LIMIT $2::bigint)
