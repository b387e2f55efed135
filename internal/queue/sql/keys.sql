-- Selects the jobs that hold unique keys.
SELECT unique_key, id FROM {jobs} WHERE unique_key = ANY (ARRAY(SELECT jsonb_array_elements_text($1::jsonb)))
