-- Reads the next thousand steps after $1. It reads steps of unfinished runs that are enqueued, or
-- that were moved and not processed further. It returns the steps to report. The first row is the
-- last step that was read, without a state, or as "full" if more may follow.
WITH page AS MATERIALIZED (
	SELECT s.id, s.state, s.job_id
	FROM (SELECT id FROM {runs} WHERE finished_at IS NULL AND id >= $1::bigint >> 30 ORDER BY id) AS r CROSS JOIN LATERAL (
		SELECT id, state, job_id FROM {steps} WHERE id > $1::bigint AND id >= r.id << 30 AND id < (r.id + 1) << 30
			AND finished_at IS NULL AND state NOT IN ('waiting', 'spread')
		ORDER BY id LIMIT 1000) AS s
	LIMIT 1000
)
SELECT coalesce(max(id), 0), CASE count(*) WHEN 1000 THEN 'full' ELSE '' END FROM page
UNION ALL
SELECT id, state FROM page WHERE state <> 'enqueued' OR (SELECT true FROM {jobs} WHERE id = page.job_id LIMIT 1) IS NULL
