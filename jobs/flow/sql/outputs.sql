-- Reads the results of the completed jobs of a Map step.
SELECT coalesce(jsonb_agg(result ORDER BY id), '[]')::text FROM {steps}
WHERE id > $1::bigint AND id < $1::bigint + 1048576 AND state = 'completed'
