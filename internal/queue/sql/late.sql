-- Selects jobs that are past their good_until.
SELECT id FROM {jobs} WHERE id = ANY ($1::text::bigint[]) AND good_until <= clock_timestamp()
