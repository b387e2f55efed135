-- Selects kinds of due jobs for which a worker has no code, among the first thousand. It walks from
-- lane to lane, and skips jobs that are due later.
SELECT kind FROM (
	SELECT j.kind FROM generate_series(1, 9) AS p CROSS JOIN LATERAL (
		SELECT kind FROM {jobs} WHERE state = 'available' AND queue = $1::text AND priority = p::smallint AND run_at <= statement_timestamp()
		ORDER BY run_at, id LIMIT 1000) AS j
	LIMIT 1000) AS first
WHERE kind <> ALL (ARRAY(SELECT jsonb_array_elements_text($2::jsonb)))
GROUP BY kind ORDER BY kind LIMIT 10
