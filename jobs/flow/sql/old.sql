-- Finds runs that ended before the retention. The retention is the operator's for all queues, or
-- else $1 microseconds; NULL is for ever. The runs of the list $2 are left out.
SELECT id FROM {runs} WHERE finished_at < statement_timestamp() - coalesce((SELECT retention FROM {queues} WHERE name = '*'), $1::bigint * interval '1 microsecond')
	AND NOT id = ANY (ARRAY(SELECT jsonb_array_elements_text($2::jsonb)::bigint))
ORDER BY finished_at, id LIMIT {limit} FOR UPDATE SKIP LOCKED
