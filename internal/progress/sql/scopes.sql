SELECT consumer_name, coalesce(scope::text, '') FROM {checkpoints}
WHERE split_at IS NULL AND split_part(consumer_name, '#', 1) IN (SELECT jsonb_array_elements_text($1::jsonb))
ORDER BY consumer_name COLLATE "C"
