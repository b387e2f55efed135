-- Removes steps of finished runs, $1: five thousand at most. It returns how many it has removed.
WITH ended AS MATERIALIZED (
	SELECT id FROM {runs} WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text($1::jsonb)::bigint)) AND finished_at IS NOT NULL ORDER BY id FOR UPDATE SKIP LOCKED
), gone AS (
	DELETE FROM {steps} WHERE id = ANY (ARRAY(
		SELECT s.id FROM ended AS r CROSS JOIN LATERAL (
			SELECT id FROM {steps} WHERE id >= r.id << 30 AND id < (r.id + 1) << 30 ORDER BY id) AS s LIMIT 5000))
	RETURNING 1
)
SELECT count(*) FROM gone
