WITH gone AS (
	DELETE FROM {once} WHERE key = ANY (ARRAY(
		SELECT key FROM {once} WHERE key = ANY (ARRAY(SELECT jsonb_array_elements_text($1::jsonb))) AND expires_at < statement_timestamp() FOR UPDATE SKIP LOCKED))
	RETURNING 1
)
SELECT count(*) FROM gone
