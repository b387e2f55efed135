-- Takes the key $2 for $4 microseconds, with the hash $3 of the job. If $4 is NULL, it takes the
-- key for ever. A job that a trigger drops has the id -1.
{enqueue_given}, passed AS (
	INSERT INTO {once} AS o (key, job_id, hash, expires_at)
	SELECT $2::text, id, $3::text, clock_timestamp() + $4::bigint * interval '1 microsecond' FROM given
	ON CONFLICT (key) DO UPDATE SET job_id = excluded.job_id, hash = excluded.hash, expires_at = excluded.expires_at
	WHERE o.expires_at < clock_timestamp()
	RETURNING 1
), {enqueue_new EXISTS (SELECT FROM passed)}
UNION ALL SELECT 1, -1 FROM passed WHERE NOT EXISTS (SELECT FROM new)
