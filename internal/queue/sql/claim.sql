-- Walks the index of each lane as far as it claims. It names the rows by ctid, since a join becomes
-- a sequential scan under a generic plan. The UPDATE locks the rows, so their ctids stay valid.
--
-- The limit is part of the text. With a parameter for the limit, a generic plan expects a tenth of
-- the queue. Then each claim would be planned again. The user's condition is part of the text, too.
--
-- open is the condition of a claim: the transaction has locked every cap of the queue. The
-- statement itself checks the caps, since the worker's knowledge may be out of date.
WITH lane AS (
	{lane_rows $4}
), picked AS MATERIALIZED (
	SELECT j.at, row_number() OVER () AS n
	FROM lane CROSS JOIN LATERAL (
		SELECT ctid AS at FROM {jobs} WHERE {claimable} ORDER BY run_at, id LIMIT {limit} FOR UPDATE SKIP LOCKED) AS j
	WHERE EXISTS (SELECT FROM {workers} WHERE worker_id = $1::uuid)
		AND NOT EXISTS (SELECT FROM {queues} WHERE name IN ($3::text, '*') AND paused_at IS NOT NULL)
		AND {open}
	LIMIT {limit}
)
UPDATE {jobs} AS j SET state = 'running', attempt = j.attempt + 1, claimed_by = $1::uuid, claim = $2::bigint, claimed_at = clock_timestamp(),
	started_at = CASE WHEN {starts} THEN clock_timestamp() END,
	unique_key = CASE WHEN NOT (j.until_start AND {starts}) THEN j.unique_key END
WHERE j.ctid = ANY (ARRAY(SELECT at FROM picked))
RETURNING {columns}
