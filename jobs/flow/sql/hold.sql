-- Locks the jobs $1 that have not ended. In the order of locks, jobs come after runs and steps.
SELECT id, state = 'running' FROM {jobs} WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text($1::jsonb)::bigint)) ORDER BY id FOR UPDATE
