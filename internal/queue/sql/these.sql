-- A condition: the job's id is in the list $1.
id = ANY (ARRAY(SELECT jsonb_array_elements_text($1::jsonb)::bigint))
