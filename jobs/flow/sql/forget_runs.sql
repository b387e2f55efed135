-- Removes finished runs, $1, without steps.
WITH gone AS (
	DELETE FROM {runs} WHERE id = ANY (ARRAY(
		SELECT id FROM {runs} WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text($1::jsonb)::bigint)) AND finished_at IS NOT NULL FOR UPDATE SKIP LOCKED))
		AND (SELECT true FROM {steps} AS s WHERE s.id >= {runs}.id << 30 AND s.id < ({runs}.id + 1) << 30 LIMIT 1) IS NULL
	RETURNING 1
)
SELECT count(*) FROM gone
