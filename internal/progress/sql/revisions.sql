SELECT consumer_name, revision FROM {checkpoints}
WHERE consumer_name IN (SELECT jsonb_array_elements_text($1::jsonb))
