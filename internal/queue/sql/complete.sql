WITH d AS MATERIALIZED (SELECT * FROM unnest($1::text::bigint[], $2::text::bigint[]) AS d(id, claim)), gone AS (
	DELETE FROM {jobs} AS j WHERE {unlocked} {completed}
