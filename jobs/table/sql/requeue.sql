-- Distinguishes a missing row, a locked row, and a row that a trigger leaves unchanged.
WITH mine AS MATERIALIZED (
	SELECT t.{id} AS id FROM {table} AS t WHERE t.{id} = $1::bigint FOR NO KEY UPDATE SKIP LOCKED
), requeued AS (
	UPDATE {table} AS t SET {state} = 'queued', {queued_at} = clock_timestamp(), {started_at} = NULL, {finished_at} = NULL,
		{process_after} = $2::timestamptz, {cancel} = false
	WHERE t.{id} = ANY (ARRAY(SELECT id FROM mine))
	RETURNING t.{id} AS id
)
SELECT EXISTS (SELECT FROM mine), EXISTS (SELECT FROM requeued) FROM {table} AS t WHERE t.{id} = $1::bigint
