SELECT key FROM {once} WHERE expires_at < statement_timestamp() AND NOT key = ANY (ARRAY(SELECT jsonb_array_elements_text($1::jsonb)))
ORDER BY expires_at LIMIT {limit} FOR UPDATE SKIP LOCKED
