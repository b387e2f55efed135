-- The list of runs, from arrays. A claim is the microsecond of started_at.
d AS MATERIALIZED (
	SELECT id, claim, 'epoch'::timestamptz + claim * interval '1 microsecond' AS started
	FROM unnest($1::text::bigint[], $2::text::bigint[]) AS d(id, claim)
)
