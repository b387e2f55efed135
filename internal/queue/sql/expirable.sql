-- Select the first rows of an index that are neither locked nor set aside. The limit is part of the
-- text, as in a claim.
SELECT id FROM {jobs} WHERE state = 'available' AND good_until <= statement_timestamp() AND NOT id = ANY ($1::text::bigint[])
ORDER BY good_until LIMIT {limit} FOR UPDATE SKIP LOCKED
