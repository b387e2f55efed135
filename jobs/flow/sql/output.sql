-- Finds the step $2 of the run $1 by name. It tries first the place of the step in this program's
-- flow, $3.
SELECT state, finished_at IS NOT NULL, coalesce(code, ''), coalesce(error, ''), result FROM (
	SELECT * FROM {steps} WHERE id = $3::bigint AND name = $2::text
	UNION ALL
	SELECT * FROM {steps} AS s WHERE {of_run} AND id & 1048575 = 0 AND name = $2::text) AS s LIMIT 1
