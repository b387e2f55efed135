-- Selects in how many microseconds the first job is due. The value is negative if the job is
-- already due. It is NULL if no job is due up to $4 microseconds from now. It also selects whether
-- the queue has a cap, or is paused. It walks the lanes like a claim, and skips jobs that are due
-- later.
SELECT (
	SELECT (extract(epoch FROM min(greatest(j.run_at, statement_timestamp() - interval '1 day')) - statement_timestamp()) * 1000000)::bigint FROM (
		{lane_rows $2}
	) AS lane CROSS JOIN LATERAL (
		SELECT run_at FROM {jobs} WHERE state = 'available' AND queue = $1::text AND priority = lane.p
			AND run_at <= statement_timestamp() + $4::bigint * interval '1 microsecond' AND (run_at, id) > (lane.at, lane.id)
			AND kind = ANY (ARRAY(SELECT jsonb_array_elements_text($3::jsonb))) AND (good_until IS NULL OR good_until > statement_timestamp())
		ORDER BY run_at, id LIMIT 1) AS j
), EXISTS (SELECT FROM {queues} WHERE name IN ($1::text, '*') AND max_running IS NOT NULL),
	EXISTS (SELECT FROM {queues} WHERE name IN ($1::text, '*') AND paused_at IS NOT NULL)
