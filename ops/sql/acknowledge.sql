-- Marks the failed jobs whose rows are not locked. It returns their number, the time of the last
-- failure, and a digest of the IDs.
WITH seen AS MATERIALIZED (
	SELECT id FROM {history}
	WHERE state = 'failed' AND acknowledged_at IS NULL AND queue = $1::text AND finished_at <= $2::timestamptz
	FOR NO KEY UPDATE SKIP LOCKED
), marked AS (
	UPDATE {history} AS h SET acknowledged_at = statement_timestamp() FROM seen WHERE h.id = seen.id
	RETURNING h.id, h.finished_at
), done AS (
	SELECT count(*) AS n, max(finished_at) AS last, string_agg(id::text, ' ' ORDER BY id) AS ids FROM marked
)
SELECT n, {time_or_never last}, encode(sha256(convert_to(coalesce(ids, ''), 'UTF8')), 'hex') FROM done
