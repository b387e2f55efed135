-- The IDs of steps, $1. turn locks their runs, except runs that others have locked. mine are the
-- steps of the locked runs.
given AS MATERIALIZED (
	SELECT DISTINCT value::bigint AS id FROM jsonb_array_elements_text($1::jsonb)
), turn AS MATERIALIZED (
	SELECT id FROM {runs} WHERE id = ANY (ARRAY(SELECT DISTINCT id >> 30 FROM given)) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
), mine AS MATERIALIZED (
	SELECT id FROM given WHERE id >> 30 = ANY (ARRAY(SELECT id FROM turn))
)
