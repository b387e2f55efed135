WITH d AS MATERIALIZED (SELECT * FROM unnest($1::text::bigint[], $2::text::bigint[]) AS d(id, claim))
UPDATE {jobs} AS j SET started_at = clock_timestamp(), unique_key = CASE WHEN NOT j.until_start THEN j.unique_key END
WHERE {unlocked}
	AND j.started_at IS NULL AND j.cancel_at IS NULL AND (j.good_until IS NULL OR j.good_until > clock_timestamp())
RETURNING j.id
