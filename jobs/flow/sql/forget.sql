-- Removes the steps for the jobs of the Map steps $1. Their IDs follow the ID of the Map step.
DELETE FROM {steps} WHERE id = ANY (ARRAY(
	SELECT s.id FROM (SELECT value::bigint AS id FROM jsonb_array_elements_text($1::jsonb)) AS m CROSS JOIN LATERAL (SELECT id FROM {steps} WHERE id > m.id AND id < m.id + 1048576 ORDER BY id) AS s))
