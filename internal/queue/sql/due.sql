-- Selects the jobs that a claim would take, with the parameters of the claim.
SELECT j.id FROM (
	{lane_rows $4}
) AS lane CROSS JOIN LATERAL (
	SELECT id FROM {jobs} WHERE {claimable} ORDER BY run_at, id LIMIT {limit}) AS j
WHERE ($1::uuid, $2::bigint, $6::bigint, $7::bigint) IS NOT NULL
LIMIT {limit}
